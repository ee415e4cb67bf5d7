# shellcheck shell=bash
# Sourced: where the PostgreSQL is that we build and test with.

# Sets PG_CONFIG, PG_BINDIR, PG_REGRESS, PG_TEST_PERL, or ends the script.
find_postgres()
{
    local candidate pgxs

    for candidate in "${PG_CONFIG:-}" /usr/lib/postgresql/15/bin/pg_config pg_config; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null; then
            PG_CONFIG=$(command -v "$candidate")
            break
        fi
    done
    if ! pgxs=$("${PG_CONFIG:-pg_config}" --pgxs 2>/dev/null) || [ ! -f "$pgxs" ]; then
        echo "No PostgreSQL server headers found; run test/setup, or set PG_CONFIG." >&2
        exit 1
    fi
    pgxs=$(dirname "$pgxs")
    PG_BINDIR=$("$PG_CONFIG" --bindir)
    # shellcheck disable=SC2034
    PG_REGRESS=$(cd "$pgxs/../test/regress" && pwd)/pg_regress
    # shellcheck disable=SC2034
    PG_TEST_PERL=$(cd "$pgxs/../test/perl" && pwd)
}
