# The coherence torture over tcp, with data checksums: RBP_TORTURE_SECONDS
# seconds (60), see RemoteBP::Torture.
# Timeout: 3600

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Torture;
use Test::More;

torture(name => 'torture_checksums', transport => 'tcp', checksums => 1);
done_testing();
