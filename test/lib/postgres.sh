# shellcheck shell=bash
# Sourced: where the PostgreSQL is that we build and test with.

# Print the version that the machine's Debian release has.
own_version()
{
    local release

    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    awk -v release="$release" '$2 == release { version = $1 } END { print version ? version : 15 }' test/versions/table
}

# Print the major version of the server that find_postgres has found.
server_version()
{
    "$PG_CONFIG" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/'
}

# Sets PG_CONFIG, PG_BINDIR, PG_REGRESS, PG_TEST_PERL, or ends the script.
# Without PG_CONFIG, it is the newest server that has headers.
find_postgres()
{
    local candidate pgxs

    if [ -z "${PG_CONFIG:-}" ]; then
        for candidate in $(printf '%s\n' /usr/lib/postgresql/*/bin/pg_config | sort -rV) pg_config; do
            if pgxs=$("$candidate" --pgxs 2>/dev/null) && [ -f "$pgxs" ]; then
                PG_CONFIG=$candidate
                break
            fi
        done
    fi
    PG_CONFIG=$(command -v "${PG_CONFIG:-pg_config}" || true)
    if ! pgxs=$("${PG_CONFIG:-pg_config}" --pgxs 2>/dev/null) || [ ! -f "$pgxs" ]; then
        echo "No PostgreSQL server headers found; run test/setup, or set PG_CONFIG." >&2
        exit 1
    fi
    pgxs=$(dirname "$pgxs")
    # shellcheck disable=SC2034
    PG_BINDIR=$("$PG_CONFIG" --bindir)
    # shellcheck disable=SC2034
    PG_REGRESS=$(cd "$pgxs/../test/regress" && pwd)/pg_regress
    # shellcheck disable=SC2034
    PG_TEST_PERL=$(cd "$pgxs/../test/perl" && pwd)
}
