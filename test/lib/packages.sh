# shellcheck shell=bash disable=SC2034
# Sourced: the Debian packages that we need.  The server and its headers come
# on top.

packages_to_build=(
    gcc
    libc6-dev
    make
    pkg-config
    libmicrohttpd-dev
    libjansson-dev
    librdmacm-dev
    libcurl4-openssl-dev
    libgnutls28-dev
    libibverbs-dev
    libsqlite3-dev
    libssl-dev
    libsystemd-dev
    libxxhash-dev
    libpq-dev
)
packages_to_test=(
    bzip2
    curl
    e2fsprogs
    iproute2
    jq
    libio-socket-ssl-perl
    libipc-run-perl
    openssl
    perl
    procps
    prometheus
    prometheus-postgres-exporter
    xz-utils
)
packages_to_lint=(
    cppcheck
    pg-bsd-indent
)
# make deb
packages_to_package=(
    debhelper
)
# what the packages are checked by
packages_to_check_packages=(
    blhc
    lintian
    systemd
)
# images with the packages, which "make soak" tests
packages_for_images=(
    buildah
)
# two servers that Patroni runs, which "make soak" tests
packages_for_patroni=(
    etcd-server
    patroni
)
# root directories with other versions of the server
packages_for_versions=(
    debootstrap
)
# a guest with a kernel of its own
packages_for_rdma=(
    busybox-static
    cpio
    ibverbs-providers
    ibverbs-utils
    kmod
    perftest
    qemu-system-x86
    rdmacm-utils
)
