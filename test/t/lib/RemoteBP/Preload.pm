# Servers and daemons that run with a library of test/preload: names.c, a name
# server that hangs at will, names whose address changes, and machines that are
# clones of each other; page_cache.c, a page
# cache that cannot be asked; advice.c, what the kernel is asked to read ahead; dumpable.c, a
# donor whose memory can be looked at.

package RemoteBP::Preload;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(preload_library start_preloaded);

my %library;

# The library's file, for LD_PRELOAD.
sub preload_library
{
	my ($name) = @_;
	(my $top = __FILE__) =~ s{[^/]*$}{../../../..};
	if (!$library{$name})
	{
		my $file = PostgreSQL::Test::Utils::tempdir() . "/$name.so";
		system('cc', '-O1', '-shared', '-fPIC', '-o', $file, "$top/test/preload/$name.c", '-ldl') == 0
		  or BAIL_OUT("test/preload/$name.c does not compile");
		$library{$name} = $file;
	}
	return $library{$name};
}

# Start the node with the libraries, whose names are separated by blanks, and these
# variables in its environment.
sub start_preloaded
{
	my ($node, $names, %env) = @_;
	local %ENV = (%ENV, %env, LD_PRELOAD => join(' ', map { preload_library($_) } split(/ /, $names)));
	$node->start;
	return;
}

1;
