# Processes of any kind are killed at any moment over tcp, with data checksums, as in 043, and
# the tier keeps its pages; see RemoteBP::Torture.
# Timeout: 14400

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Torture;
use Test::More;

torture_kills(name => 'torture_kills_tcp', transport => 'tcp', checksums => 1, soak => 250);
done_testing();
