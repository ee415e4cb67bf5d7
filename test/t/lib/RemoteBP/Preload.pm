# Servers that run with test/preload/names.c: a name server that hangs at will,
# machines that are clones of each other.

package RemoteBP::Preload;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_preloaded);

my $library;

# Start the node with the library, and these variables in its environment.
sub start_preloaded
{
	my ($node, %env) = @_;
	(my $top = __FILE__) =~ s{[^/]*$}{../../../..};
	if (!$library)
	{
		my $file = PostgreSQL::Test::Utils::tempdir() . '/names.so';
		system('cc', '-O1', '-shared', '-fPIC', '-o', $file, "$top/test/preload/names.c", '-ldl') == 0
		  or BAIL_OUT('test/preload/names.c does not compile');
		$library = $file;
	}
	local %ENV = (%ENV, %env, LD_PRELOAD => $library);
	$node->start;
	return;
}

1;
