# What operators do each day, on the broker, the donors and the server, loses nothing:
# see RemoteBP::Operations.  Over tcp.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Operations;
use Test::More;

run_operations('tcp');

done_testing();
