# shellcheck shell=bash
# Sourced: the few words of TAP that shell tests need.

tap_points=0
tap_failed=0

# point STATUS NAME: one test point, passed if STATUS is 0, which it returns.
point()
{
    tap_points=$((tap_points + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $tap_points - $2"
    else
        echo "not ok $tap_points - $2"
        tap_failed=1
    fi
    return "$1"
}

# check NAME COMMAND...: passed if the command succeeds; what it says is shown
# if it does not.
check()
{
    local name=$1 said status=0

    shift
    said=$("$@" 2>&1) || status=$?
    point "$status" "$name" || diagnose "$said"
}

diagnose()
{
    printf '%s\n' "$1" | sed 's/^/# /'
}

done_testing()
{
    echo "1..$tap_points"
    exit "$tap_failed"
}
