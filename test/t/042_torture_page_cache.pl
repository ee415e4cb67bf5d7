# The coherence torture over tcp with the page cache asked first: pages come from
# donors or the page cache, which loses them again and again; see
# RemoteBP::Torture.
# Timeout: 3600

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use RemoteBP::Torture;
use Test::More;

torture(name => 'page_cache', transport => 'tcp', checksums => 1, read_from => 'cache');
done_testing();
