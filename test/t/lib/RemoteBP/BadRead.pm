# A server whose disk gives one wrong byte, once: a preloaded library (see
# test/modules/bad_read) flips a bit in one page as it is read.

package RemoteBP::BadRead;

use strict;
use warnings;

use RemoteBP;
use Test::More;

sub new
{
	my ($class) = @_;
	my $path = build_module('bad_read');
	return bless { library => "$path.so", orders => "$path.orders" }, $class;
}

# Servers that the sub starts have the library.
sub preloaded
{
	my ($self, $sub) = @_;
	local $ENV{LD_PRELOAD} = $self->{library};
	local $ENV{RBP_BAD_READ} = $self->{orders};
	return $sub->();
}

sub order
{
	my ($self, $line) = @_;
	unlink "$self->{orders}.done";
	open(my $out, '>', "$self->{orders}.new") or die $!;
	print $out "$line\n";
	close $out;
	rename("$self->{orders}.new", $self->{orders}) or die $!;
	return;
}

# The next read of that block of the relation gives that byte wrong, or with
# -1 zeros.
sub spoil
{
	my ($self, $node, $rel, $block, $byte) = @_;
	my $path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('$rel')");
	$self->order("/$path " . $block * 8192 . " $byte");
	return;
}

# From now on one of so many reads gives a wrong bit; undef: none.
sub spoil_any
{
	my ($self, $one_of) = @_;
	return $self->order("any $one_of " . int(rand(2**30))) if $one_of;
	unlink $self->{orders};
	return;
}

# Did it?
sub struck
{
	my ($self) = @_;
	return -e "$self->{orders}.done" ? 1 : 0;
}

# What each of the queries, in one session, gives, or "error".
sub outcomes
{
	my ($self, $node, @queries) = @_;
	my ($out, $err) = ('', '');
	$node->psql('postgres', join('', map { "$_;\n\\if :ERROR\n\\echo error\n\\endif\n\\echo ==\n" } @queries),
		stdout => \$out, stderr => \$err, on_error_stop => 0);
	note($err) if $err ne '';
	return map { s/^\s+|\s+$//gr } split(/^==$/m, $out);
}

1;
