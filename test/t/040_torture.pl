# The coherence torture over shm, without data checksums: RBP_TORTURE_SECONDS
# seconds (60), see RemoteBP::Torture.
# Timeout: 3600

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Torture;
use Test::More;

torture(name => 'torture', transport => 'shm', checksums => 0);
done_testing();
