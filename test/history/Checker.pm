# What a history says of the promises of docs/protocol.md: a pure function of its lines.
#
# A line is "BEGIN END WHO WHAT KEY=VALUE...": when it began and ended, in seconds of one clock, and what
# WHO did or saw.  A client's lines do not overlap.  Regions are DONOR/NUMBER, grants DONOR/NUMBER/REV,
# marks LEASE/REV/SEQUENCE.
#
#   client   get     status= broker= lease= ttl= regions=       a new lease; sure=0: a request may be served later, too
#            renew   the same, named= donors, released= regions, asked= donors that want memory back, unknown= brokers
#                    that said 404
#            drop    lease= why=                                 it is not used any more; a status: as brokers said
#            write, read   lease= region= rev= status=ok|denied|failed mark=
#   donor    ended   lease=     by its own clock
#            killed
#   broker   granted lease= client=
#            expired, taken_over, taken   lease=                 it ended there, or regions were taken after the grace time
#            started, joined donor=
#            gave_up donor=     which was silent for three times --donor-timeout
#
# Nothing is judged by how quick anybody was: an access counts if it ended before what was promised ended.

package Checker;

use strict;
use warnings;

# Clocks of milliseconds round down, at each broker that a lease goes through.
use constant ROUNDING => 0.05;

# check(lines): the violations, each beginning with the rule that it breaks, and counts of what happened
sub check
{
	my @lines = map { parse($_) } @_;
	my %seen = (bad => [], counts => {}, ended => {}, excuse => {}, killed => {}, gave_up => {}, granted => {});

	for my $l (@lines)
	{
		my $k = "$l->{op}" . ($l->{op} =~ /^(get|renew|drop|write|read)$/ ? " " . ($l->{status} // $l->{why} // '') : '');
		$seen{counts}{$k}++;
		push @{ $seen{ended}{"$l->{lease} $l->{who}"} }, $l if $l->{op} eq 'ended';
		push @{ $seen{excuse}{ $l->{lease} } }, $l if $l->{op} =~ /^(expired|taken_over|taken)$/;
		push @{ $seen{killed}{ $l->{who} } }, $l if $l->{op} eq 'killed';
		push @{ $seen{granted}{ $l->{client} } }, $l if $l->{op} eq 'granted';
		push @{ $seen{joined}{ $l->{donor} } }, $l if $l->{op} eq 'joined';
		push @{ $seen{gave_up}{ $l->{donor} } }, $l if $l->{op} eq 'gave_up';
	}
	my @ours = grep { $_->{op} =~ /^(get|renew|drop|write|read)$/ } @lines;
	two_holders(\%seen, \@ours);
	unknown(\%seen, \@lines);
	for my $client (sort keys %{ { map { ($_->{who} => 1) } @ours } })
	{
		promises(\%seen, [sort { $a->{t0} <=> $b->{t0} } grep { $_->{who} eq $client } @ours]);
	}
	after_fence(\%seen, \@ours);
	return ($seen{bad}, $seen{counts});
}

sub parse
{
	my ($t0, $t1, $who, $op, @rest) = split ' ', $_[0];
	return { t0 => $t0, t1 => $t1, who => $who, op => $op, line => $_[0], map { /^(\w+)=(.*)$/ ? ($1 => $2) : () } @rest };
}

sub bad
{
	my ($seen, $rule, $why, @lines) = @_;
	push @{ $seen->{bad} }, join("\n    ", "rule $rule: $why", map { $_->{line} } @lines);
}

sub is_access { return $_[0]{op} =~ /^(read|write)$/ && $_[0]{status} eq 'ok' }

sub lease_of { return $_[0] =~ m{^([^/]+)/} ? $1 : '' }

# first(list, field, time): how many of the list, sorted by that field, are up to that time
sub first_after
{
	my ($list, $field, $time) = @_;
	my ($low, $high) = (0, scalar @$list);

	while ($low < $high)
	{
		my $mid = int(($low + $high) / 2);
		if ($list->[$mid]{$field} > $time) { $high = $mid; }
		else { $low = $mid + 1; }
	}
	return $low;
}

# Rule 1: no two holders use a region at the same time.  A mark that is found is one's own; and while one's
# mark is there, from the end of its write to the begin of a read of it, nobody else can access the region.
sub two_holders
{
	my ($seen, $ours) = @_;
	my (%accesses, %written, %last);

	for my $l (sort { $a->{t0} <=> $b->{t0} } grep { is_access($_) } @$ours)
	{
		push @{ $accesses{ $l->{region} } }, $l;
		$written{"$l->{region} $l->{mark}"} = $l if $l->{op} eq 'write';
		next if $l->{op} eq 'write' || $l->{mark} eq '-';
		if (lease_of($l->{mark}) eq $l->{lease}) { $last{"$l->{region} $l->{mark}"} = $l; }
		else { bad($seen, 1, "a mark that is not its own is found", $l); }
	}
	for my $region (keys %accesses)
	{
		my $holder = '';
		for my $l (@{ $accesses{$region} })
		{
			$seen->{counts}{'changes of holder'}++ if $holder ne $l->{lease};
			$holder = $l->{lease};
		}
	}
	for my $at (sort keys %last)
	{
		my ($write, $read) = ($written{$at} // next, $last{$at});
		my $list = $accesses{ $read->{region} };

		for (my $i = first_after($list, 't0', $write->{t1}); $i < @$list && $list->[$i]{t0} < $read->{t0}; $i++)
		{
			my $other = $list->[$i];
			bad($seen, 1, "another holder uses the region meanwhile", $write, $other, $read)
				if $other->{lease} ne $write->{lease} && $other->{t1} < $read->{t0};
		}
	}
}

# Rule 2: what an answer promises is kept, until TTL after the request was sent.  A region is the holder's, with
# what it has written, unless he gives it back, its donor is killed or given up, a broker has asked for it, or
# the lease has ended since nobody renewed it at the broker that its donor follows.  (The last does
# not excuse the loss of what was just granted: its donor has applied that.)
sub promises
{
	my ($seen, $lines) = @_;
	my ($lease, $until, $unsure, %held, %asked, %firm, %late, %known) = ('', 0);

	# Did a broker serve a request for another lease of this client, which it had given up, after it was granted this one?
	# Brokers compare seconds.
	my $newer = sub {
		my @granted = @{ $seen->{granted}{ $lines->[0]{who} } // [] };
		my ($this) = grep { $_->{lease} eq $lease } @granted;
		return $this && grep { $_->{lease} ne $lease && $_->{t1} >= $this->{t0} - 1 && $_->{t0} <= $_[0]{t1} } @granted;
	};

	my $lost = sub {
		my ($region, $why, $l) = @_;
		my ($donor) = $region =~ m{^(.*)/};
		my $h = delete $held{$region};
		$h->{gone} = 1;
		my $since = sub { grep { $_->{t1} >= $h->{since} } @_ };

		my $firm = $l->{t1} < ($firm{$donor} // 0) - ROUNDING;
		my @ends = map { $_->{op} } $since->(@{ $seen->{ended}{"$lease $donor"} // [] }, @{ $seen->{excuse}{$lease} // [] }, @{ $seen->{gave_up}{$donor} // [] });
		my ($end) = grep { $_ ne 'taken_over' } @ends;
		# Before the answer, too, if its broker had not heard of the next process: what it promised was of a dead one.
		my @joined = grep { $_->{t1} < $h->{since} && $_->{who} eq "b$h->{line}{broker}" } @{ $seen->{joined}{$donor} // [] };
		my $killed = grep { my $k = $_; $k->{t0} <= $l->{t1} && !grep { $_->{t0} >= $k->{t1} } @joined } @{ $seen->{killed}{$donor} // [] };
		my $excuse = $killed ? 'killed' :
			$asked{$donor} ? 'asked for' :
			# at this broker, or at one that the donor has gone to
			$newer->($l) && (grep({ $_ eq 'taken_over' } @ends) || $since->(@{ $seen->{joined}{$donor} // [] })) ? 'taken_over' :
			$firm ? undef : $end;

		if ($excuse)
		{
			$seen->{counts}{"lost: $excuse"}++;
			return;
		}
		bad($seen, 2, $why . ($firm ? ' (and it was granted just before)' : ''), $h->{line}, $l);
	};

	for my $l (@$lines)
	{
		if ($l->{op} eq 'drop')
		{
			if ($l->{why} =~ /^\d/ && $l->{t1} < $until - ROUNDING)
			{
				$lost->($_, "the lease has not ended", $l) for sort keys %held;
			}
			$lease = '';
			%held = ();
		}
		elsif ($l->{op} =~ /^(get|renew)$/)
		{
			($lease, $until, $unsure, %held, %asked, %firm, %late, %known) = ($l->{lease}, 0) if $l->{op} eq 'get' && $l->{lease};
			next if $l->{op} eq 'get' && !$l->{lease};
			delete @held{ split /,/, $l->{released} // '' };
			if ($l->{status} !~ /^20/)
			{
				$unsure //= $l->{t0} if !$l->{sure};
				next;
			}
			my %now = map { m{^(.*)/(\d+)$} ? ($1 => $2) : () } split /,/, $l->{regions};
			for my $region (sort keys %held)
			{
				my $named = grep { $region =~ m{^\Q$_\E/} } split /,/, $l->{named} // '';
				next if defined $now{$region} && $now{$region} == $held{$region}{rev};
				$lost->($region, "the region is not in the lease any more", $l) if $named && $l->{t1} < $until - ROUNDING;
				delete $held{$region};
			}
			$unsure //= $l->{t0} if !$l->{sure};
			for my $region (keys %now)
			{
				my ($donor) = $region =~ m{^(.*)/};
				my $granted = ($unsure // $l->{t0}) + $l->{ttl} / 1000;
				# a broker that does not know yet that it is gone promises nothing anew
				my $known = $known{"$region/$now{$region}"};
				next if $held{$region} || ($known && $known->{gone});
				if ($known)
				{
					$held{$region} = $known;
					next;
				}
				$firm{$donor} = $granted if $granted > ($firm{$donor} // 0);
				$held{$region} = $known{"$region/$now{$region}"} = { rev => $now{$region}, since => $unsure // $l->{t0}, line => $l };
			}
			$until = $l->{t0} + $l->{ttl} / 1000;
			%asked = map { ($_ => 1) } keys %asked, split(/,/, $l->{asked} // '');
		}
		elsif ($l->{lease} eq $lease && $held{ $l->{region} } && $held{ $l->{region} }{rev} == $l->{rev})
		{
			my $h = $held{ $l->{region} };
			my $promised = $l->{t1} < $until - ROUNDING;

			if ($l->{status} eq 'denied')
			{
				$lost->($l->{region}, "the holder is denied", $l) if $promised;
			}
			elsif ($l->{op} eq 'write' && $l->{status} eq 'ok')
			{
				$h->{mark} = $l->{mark};
			}
			elsif ($l->{op} eq 'write')
			{
				# it may come at any time
				$late{"$l->{region} $l->{mark}"} = 1;
			}
			elsif ($l->{status} eq 'ok' && $promised && $l->{mark} ne ($h->{mark} // '-') && !$late{"$l->{region} $l->{mark}"})
			{
				$lost->($l->{region}, "the region does not have what was written", $l);
			}
		}
	}
}

# Of rule 2, too: a broker that has been started, and has not heard of all donors that a holder names, does not
# say that there is no such lease.
sub unknown
{
	my ($seen, $lines) = @_;
	my @few = grep { $_->{op} =~ /^(started|joined)$/ } @$lines;
	for my $l (grep { $_->{op} eq 'renew' && ($_->{unknown} // '') ne '' && $_->{named} ne '' } @$lines)
	{
		for my $broker (map { "b$_" } split /,/, $l->{unknown})
		{
			my @before = grep { $_->{who} eq $broker && $_->{t0} <= $l->{t1} } @few;
			my ($start) = sort { $b->{t0} <=> $a->{t0} } grep { $_->{op} eq 'started' } @before;
			next if !$start || $start->{t1} >= $l->{t0};
			for my $donor (split /,/, $l->{named})
			{
				bad($seen, 2, "a broker that has not heard of $donor does not know the lease", $start, $l)
					if !grep { $_->{op} eq 'joined' && $_->{donor} eq $donor && $_->{t1} >= $start->{t0} } @before;
			}
		}
	}
}

# Rule 3: no access after a fence.  When its donor has ended a lease, or has denied it a region, the region does not
# have what was written before, also if the lease gets it once more.  And who has asked for nothing since gets nothing.
sub after_fence
{
	my ($seen, $ours) = @_;
	my (%fences, %written, %asks);

	for my $l (map { @$_ } values %{ $seen->{ended} })
	{
		push @{ $fences{"$l->{lease} $l->{who}"} }, $l;
	}
	for my $l (@$ours)
	{
		# the last request that may have got it a region; forever, if one may be served late
		$asks{ $l->{lease} } = !$l->{sure} ? 9e99 : $l->{t1} > ($asks{ $l->{lease} } // 0) ? $l->{t1} : $asks{ $l->{lease} }
			if $l->{op} =~ /^(get|renew)$/ && $l->{lease};
		push @{ $fences{"$l->{lease} $l->{region}"} }, $l if $l->{op} =~ /^(read|write)$/ && $l->{status} eq 'denied';
	}
	@$_ = sort { $a->{t1} <=> $b->{t1} } @$_ for values %fences;
	for my $l (sort { $a->{t0} <=> $b->{t0} } grep { is_access($_) } @$ours)
	{
		my ($donor) = $l->{region} =~ m{^(.*)/};

		$written{"$l->{region} $l->{mark}"} = $l if $l->{op} eq 'write';
		for my $fences (grep { defined } @fences{ "$l->{lease} $donor", "$l->{lease} $l->{region}" })
		{
			my $n = first_after($fences, 't1', $l->{t0});
			next if $n == 0;
			my $fence = $fences->[$n - 1];
			my $write = $l->{op} eq 'read' && $l->{mark} ne '-' ? $written{"$l->{region} $l->{mark}"} : undef;

			bad($seen, 3, "what was written before a fence is read after it", $write, $fence, $l) if $write && $write->{t1} < $fence->{t0};
			bad($seen, 3, "an access after a fence", $fence, $l) if ($asks{ $l->{lease} } // 9e99) < $fence->{t0};
		}
	}
}

1;
