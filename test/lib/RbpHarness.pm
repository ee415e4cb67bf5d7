# What prove says in the end.
package RbpHarness;

use strict;
use warnings;
use parent 'TAP::Harness';

sub slurp
{
	my ($file) = @_;
	open my $fh, '<', $file or return '';
	local $/;
	return scalar(<$fh>) // '';
}

sub log_of
{
	my ($file) = @_;
	return $file =~ s{^test/(.*?)(\.\w+)?$}{test/out/$1.log}r;
}

# Logs of what has failed, its points once more, and the count of test points: a test that
# has not reached its plan, or has ended badly with none of its points failed, is a failed
# point.
sub summary
{
	my ($self, $aggregate, $interrupted) = @_;
	my $failed = $aggregate->failed;
	my @points;

	for my $parser ($aggregate->parsers)
	{
		$failed++ if $parser->has_problems && !$parser->failed;
	}
	for my $file ($aggregate->descriptions)
	{
		my ($parser) = $aggregate->parsers($file);
		next unless $parser->has_problems;
		my ($log, $left) = (log_of($file), 0);
		print "\n---- $file ----\n";
		for (split /\n/, slurp($log))
		{
			$left = /^(not ok|Bail out)/ ? 20 : /^ok/ ? 0 : $left;
			print "$_\n" if $left-- > 0;
			push @points, "$file: $_" if /^(not ok|Bail out)/;
		}
		push @points, "$file: ended badly" unless $parser->failed;
		my @err = split /\n/, slurp("$log.err");
		print join("\n", @err[ ($#err > 39 ? $#err - 39 : 0) .. $#err ]), "\n";
		print "(all of it: $log, $log.err)\n";
	}
	$self->SUPER::summary($aggregate, $interrupted);
	print map { "failed: $_\n" } @points[ 0 .. ($#points > 19 ? 19 : $#points) ];
	my $skipped = $aggregate->skipped;
	print $aggregate->passed - $skipped, " passed, $failed failed", ($skipped ? ", $skipped skipped" : ''), "\n";
	return;
}

1;
