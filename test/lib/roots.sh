# shellcheck shell=bash
# Sourced: root directories of Debian releases, for tests that root runs.  They are below
# RBP_ROOTS.

roots=${RBP_ROOTS:-/var/tmp/remote_bp_roots}

# as_root PROGRAM ARGUMENT...: start the script anew by sudo, unless this is root
# already; with RBP_NO_PASSWORD where nobody can give one.
as_root()
{
    local ask=()

    [ "$(id -u)" -ne 0 ] || return 0
    [ -z "${RBP_NO_PASSWORD:-}" ] || ask=(-n)
    exec sudo "${ask[@]}" "--preserve-env=http_proxy,https_proxy,no_proxy,RBP_ROOTS,RBP_DEBIAN_MIRROR,RBP_SOAK,CI" "$@"
}

# inside ROOT COMMAND...: run a command there.  What is mounted for it is mounted in a
# mount namespace of its own, so that nothing can be left mounted, or be removed with
# the directory.
inside()
{
    # shellcheck disable=SC2016
    unshare --mount --propagation private bash -c '
        exec 9>&-
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        exec chroot "$root" env LC_ALL=C.UTF-8 HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' _ "$@"
}

# make_root ROOT RELEASE PACKAGE,...: the smallest system, with these packages, and no
# cluster where a server is installed.
make_root()
{
    rm -rf --one-file-system "$1"
    debootstrap --variant=minbase --include="$3" "$2" "$1" "${RBP_DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
        /usr/share/debootstrap/scripts/sid || return 1
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    mkdir -p "$1/etc/postgresql-common"
    echo 'create_main_cluster = false' >"$1/etc/postgresql-common/createcluster.conf"
    # a mirror may be behind
    echo 'Acquire::Check-Valid-Until "false";' >"$1/etc/apt/apt.conf.d/99remote_bp"
}
