# Processes of any kind are killed at any moment over shm, RBP_TORTURE_KILLS times (10), and
# the tier keeps its pages; see RemoteBP::Torture.
# Timeout: 14400

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Torture;
use Test::More;

torture_kills(name => 'torture_kills', transport => 'shm', checksums => 0, soak => 250);
done_testing();
