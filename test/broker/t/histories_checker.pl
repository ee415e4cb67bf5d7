#!/usr/bin/env perl
#
# What test/history/Checker.pm notices: histories made by hand, each of which breaks one promise, and those next to them
# that do not.

use strict;
use warnings;

use FindBin;
use Test::More;

use lib "$FindBin::Bin/../../history";
use Checker;

# a lease of four seconds, of a region that its holder uses
my @begin = (
	'10.0 10.1 c0 get lease=L broker=0 status=201 sure=1 ttl=4000 regions=d0/0/5',
	'10.2 10.3 c0 write lease=L region=d0/0 rev=5 status=ok mark=L/5/1');
my @renewed = (@begin, '13.5 13.6 c0 renew lease=L broker=0 status=200 sure=1 ttl=4000 named=d0 released= asked= regions=d0/0/5');
my $other = '11.0 11.1 c1 write lease=M region=d0/0 rev=7 status=ok mark=M/7/1';
my $other_later = '11.4 11.5 c1 write lease=M region=d0/0 rev=7 status=ok mark=M/7/1';
my $read = '11.2 11.3 c0 read lease=L region=d0/0 rev=5 status=ok mark=L/5/1';
my $denied = '11.2 11.3 c0 read lease=L region=d0/0 rev=5 status=denied mark=';
my $denied_renewed = '15.0 15.1 c0 read lease=L region=d0/0 rev=5 status=denied mark=';

# noticed NAME, RULES, LINES
sub noticed
{
	my ($name, $rules, @lines) = @_;
	my ($bad) = Checker::check(@lines);
	my @rules = map { /^rule (\d)/ } @$bad;
	is("@rules", $rules, $name) or diag("@$bad");
}

noticed('nothing is wrong', '', @begin, $read);
noticed("another's mark", '1', @begin, $other, '11.2 11.3 c1 read lease=M region=d0/0 rev=7 status=ok mark=L/5/1');
noticed('two holders in turns', '1', @begin, $other, $read);
noticed('one after the other', '', @begin, $read, $other_later);
noticed('one while the other is asking', '', @begin, '11.0 11.25 c1 read lease=M region=d0/0 rev=7 status=ok mark=-', $read);

noticed('a grant that its donor denies', '2', @begin, $denied);
noticed('or after its own clock has ended it too early', '2', @begin, '10.9 10.9 d0 ended lease=L', $denied);
noticed('but not after its TTL', '', @begin, '14.2 14.3 c0 read lease=L region=d0/0 rev=5 status=denied mark=');
noticed('nor if it has been killed', '', @begin, '10.8 10.8 d0 killed', $denied);
noticed('nor if it had been killed already', '', '9.8 9.8 d0 killed', @begin, $denied);
noticed('and is back at another broker only', '', '9.8 9.8 d0 killed', '9.9 9.9 b1 joined donor=d0', @begin, $denied);
noticed('but not if it was back at this one', '2', '9.8 9.8 d0 killed', '9.9 9.9 b0 joined donor=d0', @begin, $denied);
noticed('a killed donor excuses no other', '2', @begin, '10.8 10.8 d1 killed', $denied);
noticed('a region that was renewed, and denied', '2', @renewed, $denied_renewed);
noticed('unless the donor, cut off, has ended it', '', @renewed, '14.5 14.5 d0 ended lease=L', $denied_renewed);
noticed('or its broker has not heard of the renewal', '', @renewed, '14.5 14.5 b0 expired lease=L', $denied_renewed);
noticed('what ended before is no excuse', '2', '9.0 9.0 d0 ended lease=L', @renewed, $denied_renewed);
noticed('what was written is gone', '2', @begin, '11.2 11.3 c0 read lease=L region=d0/0 rev=5 status=ok mark=-');
noticed('what was written before is back', '2', @begin, '10.4 10.5 c0 write lease=L region=d0/0 rev=5 status=ok mark=L/5/2',
	'11.2 11.3 c0 read lease=L region=d0/0 rev=5 status=ok mark=L/5/1');
noticed('what may have been written is there', '', @begin, '10.4 10.5 c0 write lease=L region=d0/0 rev=5 status=failed mark=L/5/2',
	'11.2 11.3 c0 read lease=L region=d0/0 rev=5 status=ok mark=L/5/2', $read);
my $lesser = '12.0 12.1 c0 renew lease=L broker=1 status=200 sure=1 ttl=4000 released= asked= regions=';
noticed('a renewal that has lost a region', '2', @begin, "$lesser named=d0");
noticed('of a donor that the holder did not insist on', '', @begin, "$lesser named=");
noticed('that was given back', '', @begin, '12.0 12.1 c0 renew lease=L broker=1 status=200 sure=1 ttl=4000 released=d0/0 asked= regions= named=d0');
noticed('with another rev', '2', @begin, '12.0 12.1 c0 renew lease=L broker=1 status=200 sure=1 ttl=4000 named=d0 released= asked= regions=d0/0/9');
noticed('that was asked back', '', @begin, '10.4 10.5 c0 renew lease=L broker=0 status=200 sure=1 ttl=4000 named=d0 released= asked=d0 regions=d0/0/5',
	"$lesser named=d0");
noticed('a lease that is not known while it has time', '2', @begin, '12.0 12.1 c0 drop lease=L why=404');
noticed('and after that', '', @begin, '15.0 15.1 c0 drop lease=L why=404');
noticed('which its holder has ended', '', @begin, '11.0 11.0 c0 drop lease=L why=ends');
noticed('taken over by another instance', '2', @begin, '11.0 11.0 b0 taken_over lease=L', '12.0 12.1 c0 drop lease=L why=410');
my @granted = ('9.9 9.9 b0 granted lease=L client=c0', '11.0 11.0 b0 granted lease=K client=c0');
my @taken = ('11.0 11.0 b0 taken_over lease=L', '12.0 12.1 c0 drop lease=L why=410');
noticed('by a request of its own that came late', '', @begin, @granted, @taken);
noticed('but not by one that came before', '2', @begin, $granted[0], '8.0 8.0 b1 granted lease=K client=c0', @taken);
noticed('nor by that of another', '2', @begin, $granted[0], '11.0 11.0 b0 granted lease=K client=c1', @taken);

my $asks = '12.0 12.1 c0 renew lease=L broker=1 status=0 sure=1 named=d0 released= unknown=1';
noticed('a broker that has just started says 404', '2', @begin, '11.0 11.0 b1 started', $asks);
noticed('as it may when it knows the donor', '', @begin, '11.0 11.0 b1 started', '11.5 11.5 b1 joined donor=d0', $asks);
noticed('which it has to hear of anew', '2', @begin, '10.9 10.9 b1 joined donor=d0', '11.0 11.0 b1 started', $asks);

my @ended = ('10.4 10.4 c0 drop lease=L why=ends', '11.0 11.0 d0 ended lease=L');
noticed('a write after a fence', '3', @begin, @ended, '11.2 11.3 c0 write lease=L region=d0/0 rev=5 status=ok mark=L/5/2');
noticed('which is denied', '', @begin, @ended, '11.2 11.3 c0 write lease=L region=d0/0 rev=5 status=denied mark=L/5/2');
noticed('or was under way', '', @begin, @ended, '10.9 11.3 c0 write lease=L region=d0/0 rev=5 status=ok mark=L/5/2');
my @late = ($begin[0] =~ s/sure=1/sure=0/r, $begin[1], @ended);
noticed('of who may have been granted it again', '', @late, '11.2 11.3 c0 write lease=L region=d0/0 rev=5 status=ok mark=L/5/2');
noticed('what was written before it', '3', @late, $read);
noticed('access after a denial', '3 3', @begin, $ended[0], $denied, '11.4 11.5 c0 read lease=L region=d0/0 rev=5 status=ok mark=L/5/1');

my (undef, $counts) = Checker::check(@begin, $read, $other_later);
is($counts->{'changes of holder'}, 2, 'what happened is counted');
is($counts->{'write ok'}, 2, 'each kind of it');
done_testing();
