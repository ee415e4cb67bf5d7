-- Settings and their check hooks.
SELECT name, context, vartype, unit FROM pg_settings
    WHERE name LIKE 'remote\_bp.%' AND name NOT LIKE '%test%' ORDER BY name COLLATE "C";

-- Bad values are refused, with a reason.
ALTER SYSTEM SET remote_bp.broker = 'broker:8080';
ALTER SYSTEM SET remote_bp.broker = 'ftp://broker:8080';
ALTER SYSTEM SET remote_bp.broker = 'http://';
ALTER SYSTEM SET remote_bp.broker = 'http://:8080';
ALTER SYSTEM SET remote_bp.broker = 'http://broker 1:8080';
ALTER SYSTEM SET remote_bp.transport = 'pigeon';
ALTER SYSTEM SET remote_bp.client_name = 'db 1';
ALTER SYSTEM SET remote_bp.client_name = '-db1';
ALTER SYSTEM SET remote_bp.client_name = 'a234567890123456789012345678901234567890123456789012345678901234';
ALTER SYSTEM SET remote_bp.rdma_device = '/dev/infiniband/uverbs0';
ALTER SYSTEM SET remote_bp.rdma_device = 'a234567890123456789012345678901234567890123456789012345678901234';
ALTER SYSTEM SET remote_bp.rdma_port = 256;
ALTER SYSTEM SET remote_bp.rdma_gid_index = -2;
ALTER SYSTEM SET remote_bp.rdma_traffic_class = 256;
ALTER SYSTEM SET remote_bp.rdma_ack_timeout = 0;
ALTER SYSTEM SET remote_bp.rdma_retry_count = 7;
ALTER SYSTEM SET remote_bp.max_connections = 0;
ALTER SYSTEM SET remote_bp.staging_size = '129kB';
ALTER SYSTEM SET remote_bp.enabled = 'perhaps';
-- here the reason names the server's maximum
\set VERBOSITY terse
ALTER SYSTEM SET remote_bp.buffer_tier_size = '16TB';
ALTER SYSTEM SET remote_bp.temp_tier_size = '8TB';
\set VERBOSITY default
ALTER SYSTEM SET remote_bp.temp_staging_size = '129kB';
-- The versions tell a range with units in different words.
\set VERBOSITY sqlstate
ALTER SYSTEM SET remote_bp.idle_connection_timeout = '-1s';
ALTER SYSTEM SET remote_bp.buffer_tier_size = -2;
ALTER SYSTEM SET remote_bp.lease_ttl = '1s';
ALTER SYSTEM SET remote_bp.io_timeout = 0;
ALTER SYSTEM SET remote_bp.temp_tier_size = -1;
ALTER SYSTEM SET remote_bp.temp_tier_max_size = '17TB';
ALTER SYSTEM SET remote_bp.temp_staging_size = '64kB';
ALTER SYSTEM SET remote_bp.temp_io_timeout = '9ms';
ALTER SYSTEM SET remote_bp.temp_io_timeout = '11min';
\set VERBOSITY default
SELECT name, unit, min_val, max_val FROM pg_settings WHERE name ~ '^remote_bp' AND unit IS NOT NULL ORDER BY name;
SET remote_bp.use_tier = 'write';
SET remote_bp.temp_mirror = 'donor2';
SET remote_bp.spill_temp_files = 'sometimes';
SET remote_bp.spill_temp_tables = 2;

-- These are not a session's business.
SET remote_bp.broker = '';
SET remote_bp.enabled = off;
SET remote_bp.buffer_tier_max_size = '1GB';
SET remote_bp.max_connections = 10;
SET remote_bp.rdma_device = 'mlx5_0';
SET remote_bp.temp_tier_max_size = '1GB';
SET remote_bp.temp_tier_size = '1GB';
SET remote_bp.temp_staging_size = '1MB';
SET remote_bp.temp_io_timeout = '1s';
SET remote_bp.nonsense = 1;

-- Nor is comparing with the disk everybody's.
SET remote_bp.compare_with_disk = on;
SHOW remote_bp.compare_with_disk;
RESET remote_bp.compare_with_disk;
CREATE ROLE regress_remote_bp;
SET ROLE regress_remote_bp;
SET remote_bp.compare_with_disk = on;
\set VERBOSITY sqlstate
SHOW remote_bp.broker;
SHOW remote_bp.follow;
\set VERBOSITY default

-- Where its temporary data lies is.
SET remote_bp.temp_mirror = on;
SET remote_bp.spill_temp_files = off;
SET remote_bp.spill_temp_tables = on;
SELECT name, setting FROM pg_settings WHERE source = 'session' AND name LIKE 'remote\_bp.%' ORDER BY name COLLATE "C";
RESET remote_bp.temp_mirror;
RESET remote_bp.spill_temp_files;
RESET remote_bp.spill_temp_tables;
RESET ROLE;
DROP ROLE regress_remote_bp;

-- The lease follows the size without a restart.
CREATE FUNCTION rbp_wait_for_lease(megabytes bigint, which text DEFAULT 'buffer') RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    leased bigint;
BEGIN
    FOR i IN 1..600 LOOP
        leased := (SELECT coalesce(sum(bytes), 0) / 1048576 FROM remote_bp_leases WHERE purpose = which);
        EXIT WHEN leased = megabytes;
        PERFORM pg_sleep(0.05);
    END LOOP;
    RETURN leased;
END
$$;
SELECT rbp_wait_for_lease(64);
ALTER SYSTEM SET remote_bp.buffer_tier_size = '32MB';
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(32);
SELECT usable, online_pages FROM remote_bp_stat;
ALTER SYSTEM SET remote_bp.buffer_tier_size = 0;
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(0);
SELECT usable, online_pages, remote_pages FROM remote_bp_stat;
ALTER SYSTEM RESET remote_bp.buffer_tier_size;
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(64);
SELECT usable, online_pages FROM remote_bp_stat;

-- So does the one for temporary data.
SELECT rbp_wait_for_lease(32, 'temp');
ALTER SYSTEM SET remote_bp.temp_tier_size = '16MB';
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(16, 'temp');
SELECT online_pages FROM remote_bp_stat_spill;
ALTER SYSTEM SET remote_bp.temp_tier_size = 0;
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(0, 'temp');
SELECT online_pages, free_pages, usable, unusable_reason FROM remote_bp_stat_spill;
SELECT usable FROM remote_bp_stat;
ALTER SYSTEM RESET remote_bp.temp_tier_size;
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(32, 'temp');
SELECT online_pages, free_pages FROM remote_bp_stat_spill;

-- Without a broker there is no tier; a wrong one does no harm.
ALTER SYSTEM SET remote_bp.broker = '';
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(0);
SELECT rbp_wait_for_lease(0, 'temp');
ALTER SYSTEM SET remote_bp.broker = 'http://127.0.0.1:1/';
SELECT pg_reload_conf();
SELECT usable, online_pages FROM remote_bp_stat;
ALTER SYSTEM RESET remote_bp.broker;
SELECT pg_reload_conf();
SELECT rbp_wait_for_lease(64);
SELECT rbp_wait_for_lease(32, 'temp');
DROP FUNCTION rbp_wait_for_lease(bigint, text);
