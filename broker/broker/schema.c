/*-------------------------------------------------------------------------
 *
 * schema.c
 *	  The tables: what the broker knows, and what always holds of it.
 *
 * All of it is in memory: donors tell it again to another broker.  A change of donor,
 * lease or ended wakes whoever waits; what each heartbeat or renewal changes is in
 * temporary tables, and wakes nobody.  Regions have no row numbers, so they wake nobody
 * either: where one is lost or granted, the donor's revision changes, too.
 *
 * Rules are in the schema where SQL can say them: a change that breaks one
 * fails, whichever statement tried it, and ends the broker.
 *
 * Leases that lapse.  From its deadline on, for keep_ms, a lease is lapsed: nobody may
 * use it, but it has its regions, and a renewal makes it live again.  So
 *	 - it ends at its deadline and keep_ms, by the donors' clocks, too: they are told
 *	   when it ends, and know nothing of its deadline;
 *	 - it claims no more than it has (share.c), is asked before others, and what is
 *	   asked of it is taken at once (reclaim.c): nobody waits for a holder that does
 *	   not answer;
 *	 - it is not kept for a client that has got another lease since.
 * A region that was taken meanwhile, and granted again, has another rev: by that the
 * holder knows that its content is gone.
 *
 * Leases that are told of.  What a donor tells of a lease when it registers is a lease of
 * its own, told_by that donor, with its regions alone: nobody knows yet whether it is
 * true.  When the holder shows the secret from which told_key was derived, all that are
 * his become one (told.c).  Until then it is as any other that nobody renews, but it ends
 * no other, and does not shorten the time for which another one is kept.
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker/schema.h"

const char *const broker_schema =
"CREATE TABLE donor ("
" key INTEGER PRIMARY KEY,"
" id TEXT NOT NULL UNIQUE,"
" instance TEXT NOT NULL,"		/* its process: a new one has new memory */
" address TEXT NOT NULL CHECK (json_valid(address)),"	/* as lease objects have
														 * it */
" region_size INTEGER NOT NULL CHECK (region_size > 0),"
" regions INTEGER NOT NULL CHECK (regions > 0),"
" grace_ms INTEGER NOT NULL CHECK (grace_ms >= 0),"
" draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),"
" revision INTEGER NOT NULL DEFAULT 1"
") STRICT;"

"CREATE TABLE lease ("			/* live and lapsed ones */
" key INTEGER PRIMARY KEY,"		/* grows: the youngest has the largest; below
								 * 0: told of */
" id TEXT NOT NULL,"
" secret TEXT CHECK (length(secret) = 64)," /* hex digits, lower case; NULL:
											 * told of */
" told_by INTEGER REFERENCES donor ON DELETE CASCADE,"
" told_key TEXT CHECK (length(told_key) = 64),"
" client TEXT NOT NULL,"
" instance TEXT NOT NULL,"
" purpose TEXT NOT NULL CHECK (purpose IN ('buffer', 'temp')),"
" wanted INTEGER NOT NULL CHECK (wanted >= 0)," /* bytes */
" ttl_ms INTEGER NOT NULL CHECK (ttl_ms > 0),"
" keep_ms INTEGER NOT NULL CHECK (keep_ms >= 0),"
" created INTEGER NOT NULL,"	/* seconds since 1970 */

/* boot id of the client's machine: what instance has before its slash; NULL: no slash */
" machine TEXT AS (substr(instance, 1, nullif(instr(instance, '/'), 0))) STORED,"
" CHECK (iif(key > 0, secret IS NOT NULL AND told_by IS NULL AND told_key IS NULL,"
"   key < 0 AND secret IS NULL AND told_by IS NOT NULL AND told_key IS NOT NULL))"
") STRICT;"
"CREATE UNIQUE INDEX lease_id ON lease (id, ifnull(told_by, 0));"
"CREATE INDEX lease_told_by ON lease (told_by) WHERE told_by IS NOT NULL;"
"CREATE INDEX lease_client ON lease (client, purpose);"

/*
 * A region is leased, or dirty (used, but not leased any more), or else clean: of those
 * there are no rows, and most of a donor that comes is clean.  So only clean regions are
 * granted, and have one lease at most.
 */
"CREATE TABLE region ("
" donor INTEGER NOT NULL REFERENCES donor ON DELETE CASCADE,"
" number INTEGER NOT NULL,"
" lease INTEGER REFERENCES lease ON DELETE SET NULL,"	/* NULL: dirty */
" rev INTEGER NOT NULL,"		/* the donor's revision when its lease last
								 * changed */
" PRIMARY KEY (donor, number)"
") STRICT, WITHOUT ROWID;"
"CREATE INDEX region_leased ON region (lease, donor) WHERE lease IS NOT NULL;"
"CREATE INDEX region_dirty ON region (donor) WHERE lease IS NULL;"

/* A region with a row is not clean, so no lease gets it; but a lease that was told of becomes one that is not: below 0 to above. */
"CREATE TRIGGER only_clean_is_granted BEFORE UPDATE OF lease ON region"
" WHEN NEW.lease IS NOT NULL AND NOT ifnull(OLD.lease < 0 AND NEW.lease > 0, 0) BEGIN"
"  SELECT raise(ABORT, 'a region was granted that is not clean');"
" END;"

/* The last leases that ended: renewing one is answered with how that was. */
"CREATE TABLE ended ("
" key INTEGER PRIMARY KEY,"
" id TEXT NOT NULL UNIQUE,"
" how TEXT NOT NULL"			/* 'has expired', ..., as an answer says it */
") STRICT;"
"CREATE TRIGGER ended_enough AFTER INSERT ON ended BEGIN"
"  DELETE FROM ended WHERE key <= NEW.key - 2048;"
" END;"

"CREATE TEMP TABLE setting (donor_timeout_ms INTEGER);"

"CREATE TEMP TABLE donor_seen ("
" donor INTEGER PRIMARY KEY,"
" last_heard INTEGER NOT NULL," /* now_ms() */
" forgiven INTEGER NOT NULL DEFAULT 0," /* ms by which that was moved since */
" applied INTEGER NOT NULL DEFAULT 0,"	/* revision, as the donor says */
" want_back INTEGER NOT NULL DEFAULT 0,"
" stats TEXT NOT NULL DEFAULT '{}',"	/* JSON, an object of numbers */
" leased INTEGER NOT NULL DEFAULT 0,"	/* counts of its regions */
" dirty INTEGER NOT NULL DEFAULT 0"
");"
"CREATE TEMP TABLE lease_term ("
" lease INTEGER PRIMARY KEY,"
" deadline INTEGER NOT NULL,"	/* now_ms(): the end of the TTL */
" host TEXT NOT NULL DEFAULT '',"	/* its holder's address, at the last grant
									 * or renewal; '': none here yet */
" waiting_since INTEGER,"		/* now_ms(); NULL: it has what it wants */
" bytes INTEGER NOT NULL DEFAULT 0" /* of its regions */
");"

/* A lease's regions on one donor. */
"CREATE TEMP TABLE holding ("
" donor INTEGER NOT NULL,"
" lease INTEGER NOT NULL,"
" regions INTEGER NOT NULL CHECK (regions >= 0),"
" asked INTEGER NOT NULL DEFAULT 0,"	/* of these, asked back, for whichever
										 * reason */
" shared INTEGER NOT NULL DEFAULT 0,"	/* to be asked back for other leases */
" taken_at INTEGER,"			/* now_ms(), when asked ones are taken; NULL:
								 * the holder was not told yet */
" CHECK (asked BETWEEN 0 AND regions),"
" CHECK (shared BETWEEN 0 AND regions),"
" CHECK (asked > 0 OR taken_at IS NULL),"
" PRIMARY KEY (donor, lease)"
") WITHOUT ROWID;"
"CREATE INDEX temp.holding_lease ON holding (lease);"
"CREATE INDEX temp.holding_taken ON holding (taken_at) WHERE taken_at IS NOT NULL;"
"CREATE INDEX temp.holding_asked ON holding (lease) WHERE asked > 0 OR shared > 0;"

/*
 * Counts follow the regions.  Those that come, of which there may be many, are counted at once: a lease's by
 * broker_share_hold(), dirty ones when their donor registers.  A grant raises the donor's revision once.
 */
"CREATE TEMP TRIGGER holding_changed AFTER UPDATE OF regions ON holding BEGIN"
"  UPDATE donor_seen SET leased = leased + NEW.regions - OLD.regions WHERE donor = NEW.donor;"
"  UPDATE lease_term SET bytes = bytes +"
"    (NEW.regions - OLD.regions) * (SELECT region_size FROM donor WHERE key = NEW.donor)"
"   WHERE lease = NEW.lease;"
"  DELETE FROM holding WHERE donor = NEW.donor AND lease = NEW.lease AND regions = 0;"
" END;"
"CREATE TEMP TRIGGER region_lost AFTER UPDATE OF lease ON main.region"
" WHEN OLD.lease IS NOT NULL AND NEW.lease IS NULL BEGIN"
"  UPDATE donor SET revision = revision + 1 WHERE key = NEW.donor;"
"  UPDATE region SET rev = (SELECT revision FROM donor WHERE key = NEW.donor)"
"   WHERE donor = NEW.donor AND number = NEW.number;"
"  UPDATE donor_seen SET dirty = dirty + 1 WHERE donor = NEW.donor;"
"  UPDATE holding SET regions = regions - 1, asked = max(asked - 1, 0),"
"    shared = min(shared, max(asked - 1, 0)), taken_at = iif(asked > 1, taken_at, NULL)"
"   WHERE donor = NEW.donor AND lease = OLD.lease;"
" END;"
"CREATE TEMP TRIGGER region_cleaned AFTER DELETE ON main.region BEGIN"
"  UPDATE donor_seen SET dirty = dirty - 1 WHERE donor = OLD.donor;"
" END;"
"CREATE TEMP TRIGGER donor_came AFTER INSERT ON main.donor BEGIN"
"  INSERT INTO donor_seen (donor, last_heard) VALUES (NEW.key, now_ms());"
" END;"
"CREATE TEMP TRIGGER donor_left AFTER DELETE ON main.donor BEGIN"
"  DELETE FROM donor_seen WHERE donor = OLD.key;"
" END;"
"CREATE TEMP TRIGGER lease_came AFTER INSERT ON main.lease BEGIN"
"  INSERT INTO lease_term (lease, deadline) VALUES (NEW.key, now_ms() + NEW.ttl_ms);"
" END;"

/* The donors have to serve whoever proves that he knows the new one, and nobody else. */
"CREATE TEMP TRIGGER lease_secret_changed AFTER UPDATE OF secret ON main.lease"
" WHEN NEW.secret <> OLD.secret BEGIN"
"  UPDATE donor SET revision = revision + 1"
"   WHERE key IN (SELECT donor FROM holding WHERE lease = NEW.key);"
" END;"
"CREATE TEMP TRIGGER lease_left AFTER DELETE ON main.lease BEGIN"
"  DELETE FROM lease_term WHERE lease = OLD.key;"
" END;"

/*
 * state: up; draining: up, and gives its memory back; away: silent for donor_timeout;
 * gone: silent for three times as long.  Only donors that are up grant regions.  most: how many of its regions may be leased in all.  free:
 * how many more can be granted now.
 */
"CREATE TEMP VIEW donor_now AS"
" SELECT *, iif(state = 'up', max(min(regions - leased - dirty, most - leased), 0), 0) AS free"
" FROM (SELECT *,"
"  CASE WHEN silent_ms >= 3 * donor_timeout_ms THEN 'gone'"
"   WHEN silent_ms >= donor_timeout_ms THEN 'away'"
"   WHEN draining THEN 'draining' ELSE 'up' END AS state,"
"  iif(draining, 0, max(regions - want_back, 0)) AS most"
"  FROM (SELECT *, now_ms() - last_heard AS silent_ms"
"   FROM donor JOIN donor_seen ON donor_seen.donor = donor.key, setting));"
"CREATE TEMP VIEW lease_now AS SELECT *, deadline <= now_ms() AS lapsed,"
" deadline + iif(EXISTS (SELECT 1 FROM lease o WHERE o.client = lease.client"
"  AND o.purpose = lease.purpose AND o.key > max(lease.key, 0)), 0, keep_ms) AS ends"
" FROM lease JOIN lease_term ON lease_term.lease = lease.key;";
