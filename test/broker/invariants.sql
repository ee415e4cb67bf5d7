-- A row for each count in the broker's temporary tables that is wrong.  The broker runs this
-- at each commit, and aborts if there is one: see lib.sh.
WITH held (donor, lease, regions) AS
  (SELECT donor, lease, count(*) FROM region WHERE lease IS NOT NULL GROUP BY donor, lease)
SELECT 'holding.regions' FROM
  (SELECT * FROM held EXCEPT SELECT donor, lease, regions FROM holding)
UNION ALL SELECT 'holding' WHERE (SELECT count(*) FROM held) <> (SELECT count(*) FROM holding)
UNION ALL SELECT 'donor_seen' FROM donor_now d WHERE
  d.leased <> (SELECT coalesce(sum(regions), 0) FROM held WHERE donor = d.key) OR
  d.dirty <> (SELECT count(*) FROM region WHERE donor = d.key AND lease IS NULL)
UNION ALL SELECT 'lease_term.bytes' FROM lease_term t WHERE bytes <>
  (SELECT coalesce(sum(h.regions * d.region_size), 0)
    FROM held h JOIN donor d ON d.key = h.donor WHERE h.lease = t.lease)
UNION ALL SELECT 'region' FROM region r JOIN donor d ON d.key = r.donor
  WHERE r.rev > d.revision OR r.number NOT BETWEEN 0 AND d.regions - 1
