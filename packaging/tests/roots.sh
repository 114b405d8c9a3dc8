# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # work, scratch, root, version are of packaging/tests/run.sh
# Sourced by packaging/tests/run.sh: its parts that need a root with a distribution in it.
#
#   base       Debian, with systemd and what the tests use, and nothing of ours
#   debroot    a copy of it, with the debs
#   rpmroot    a copy of it, with the rpms and rpm itself, so that their scriptlets run

# In namespaces of its own: no process of this machine can be meant. `offline`: no port, either.
in_root() { # ROOT COMMANDS [offline]
    local net=()
    [ "${3:-}" != offline ] || net=(--net)
    # shellcheck disable=SC2016 # for the shell in there
    unshare --mount --pid --fork "${net[@]}" bash -c '
        ip link set lo up
        mount -t proc proc "$1/proc"
        mount -t devpts -o ptmxmode=666 devpts "$1/dev/pts"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$2"' in_root "$work/$1" "$2"
}

has_root() { # ROOT
    [ -e "$work/$1/made" ] || { echo "skipped: there is no $1"; exit 77; }
}

# Kept with DLOCK_PACKAGES.
base_root() {
    local into=$work/base
    [ ! -e "$into/made" ] || return 0
    rm -rf "$into"
    debootstrap --variant=minbase --include=libgcc-s1,procps,systemd,ibverbs-providers,iproute2,man-db \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$into" >"$scratch/debootstrap.log" 2>&1 || {
        tail -n 3 "$scratch/debootstrap.log"
        echo "skipped: debootstrap cannot make a root here (no mirror?)"
        exit 77
    }
    # Some may be missing where there is a mirror with less: the parts that use them are skipped then.
    # shellcheck disable=SC2016 # for the shell in there
    in_root base 'apt-get -qq update
        for name in rpm bash-completion zsh fish; do
            apt-get -qq -y --no-install-recommends install "$name" >/dev/null || echo "there is no $name"
        done
        apt-get -qq clean'
    touch "$into/made"
}

copy_root() { # name
    has_root base
    rm -rf "${work:?}/$1"
    cp -a --reflink=auto "$work/base" "$work/$1"
    rm "$work/$1/made"
}

deb_root() {
    local into=$work/debroot name
    copy_root debroot
    cp "$work"/deb1/*.deb "$into/srv/"
    in_root debroot "cd /srv && rm -f *dbgsym* && dpkg -i ./*.deb
        dpkg -V libdlock0 libdlock-dev dlock-server dlock-tools
        dpkg -s dlock-server | grep >/dev/null '^Status: install ok installed'
        id dlock
        test -e /lib/systemd/system/dlockd.service
        test -e /etc/dlock/dlockd.toml
        ldd /usr/bin/dlockd /usr/lib/*/libdlockc.so.0"
    for name in "$into"/usr/lib/*/libdlock{c,s,m}.so.0.0.1 "$into"/usr/bin/dlock{,d}; do
        hardened "$name"
        ! readelf -W -S "$name" | grep >/dev/null -E '\.(debug_info|symtab)' || { echo "$name: not stripped"; false; }
    done
    dpkg-deb -f "$work"/deb1/libdlock-dev_*.deb Depends | grep >/dev/null "libdlock0 (= $version-1)"
    use_installed "$into" /usr "lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" "$into/usr/bin/dlockd" \
        "$scratch/use-deb"
    touch "$into/made"
}

# A shell finds what the packages have installed, and completes by it. RESULT is the last line.
completions() {
    local shell failed=0 tried=0 rc
    has_root debroot
    cp packaging/tests/completions.sh "$work/debroot/srv/completions.sh"
    for shell in bash zsh fish; do
        rc=0
        in_root debroot "mkdir -p /tmp/c && cd /tmp/c && bash /srv/completions.sh $shell" offline || rc=$?
        case $rc in
        0) tried=$((tried + 1)) ;;
        77) ;;
        *) failed=$((failed + 1)) ;;
        esac
    done
    echo "$tried passed, $failed failed, $((3 - tried - failed)) skipped"
    [ "$failed" = 0 ]
}

# The pages are found by their names, and are of this version.
manuals() {
    has_root debroot
    in_root debroot "for page in '1 dlock' '3 dlock' '8 dlockd' '5 dlockd.toml'; do
            MANWIDTH=80 man --warnings \$page >/tmp/page 2>/tmp/warnings
            [ ! -s /tmp/warnings ] || { cat /tmp/warnings; false; }
            grep >/dev/null \"^dlock $version\" /tmp/page || { tail -n 1 /tmp/page; false; }
            echo \"man \$page: \$(wc -l </tmp/page) lines\"
        done"
}

# The packages of the next release: of the same files, with a new key in the configuration, and of the
# spec's own scriptlets.
next_rpms() { # FOLDER
    local top=$scratch/next-rpm name
    rm -rf "$top" "$1"
    mkdir -p "$top/payload" "$top/SOURCES" "$1"
    for name in $(installed_rpms); do
        rpm2cpio "$name" | (cd "$top/payload" && cpio --quiet -idu --no-absolute-filenames)
    done
    rm -rf "$top/payload/usr/lib/.build-id" "$top/payload/usr/share/"{doc,licenses}
    printf '\n# Of the next release.\n' >>"$top/payload/etc/dlock/dlockd.toml"
    cp "$DLOCK_ARCHIVE" "$top/SOURCES/umdk-$version.tar.gz"
    awk -v payload="$top/payload" '
        /^Release:/ { print "Release: 2"; next }
        /^%build/ { print "%install\ncp -a " payload "/. %{buildroot}/\n%if %{with dlock}"; leaves = 1 }
        /^%post dlock-lib/ { leaves = 0 }
        !leaves' umdk.spec >"$top/umdk.spec"
    rpmbuild -bb --quiet --with dlock --nodeps --define "_topdir $top" --define '_build_id_links none' \
        --define 'debug_package %{nil}' "$top/umdk.spec"
    find "$top/RPMS" -name '*.rpm' -exec mv {} "$1" \;
}

# Their scriptlets, run by rpm in a root with a shell, useradd and systemctl (which changes files there).
rpm_scriptlets() {
    local into=$work/rpmroot
    copy_root rpmroot
    [ -x "$into/usr/bin/rpm" ] || { echo "skipped: rpm cannot be installed in a root"; exit 77; }
    mkdir -p "$into/srv/now"
    # shellcheck disable=SC2046 # names of files
    cp $(installed_rpms) "$into/srv/now"
    next_rpms "$into/srv/next"
    cp packaging/tests/scriptlets.sh "$into/srv/scriptlets.sh"
    in_root rpmroot "bash /srv/scriptlets.sh" offline | tee "$scratch/scriptlets"
    grep -qx '== done' "$scratch/scriptlets"
    touch "$into/made"
}

# In the virtual machine of tests/rxe: a real systemd, an RDMA device, an upgrade under load.
service() {
    local into=$work/debroot next=$scratch/next
    has_root debroot
    # The next version: the same, under a higher number.
    rm -rf "$next" && mkdir -p "$into/srv/next"
    dpkg-deb -R "$work"/deb1/dlock-server_*.deb "$next"
    sed -i "s/^Version: .*/Version: $version-2/" "$next/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$next" "$into/srv/next/dlock-server.deb"
    c++ -std=c++11 -O2 packaging/tests/load.cpp -I "$into/usr/include/ub/umdk/ulock/dlock" \
        -L "$(dirname "$into"/usr/lib/*/libdlockc.so)" -ldlockc -ldlockm -lpthread -static-libstdc++ \
        -o "$into/srv/load"
    chmod 755 "$into/srv"
    cp packaging/tests/service.sh "$into/srv/service.sh"
    rm -f "$into/srv/said"
    # And once more from the rpms, so that systemd runs while their scriptlets do.
    mkdir -p "$into/srv/rpm-now"
    # shellcheck disable=SC2046 # names of files
    cp $(installed_rpms) "$into/srv/rpm-now"
    next_rpms "$into/srv/rpm-next"
    tests/rxe/vm --timeout 1500 -- sh packaging/tests/service-vm.sh "$into"
}

# The steps of the document, one shell for all, as a reader would type them.
operations() {
    has_root debroot
    awk '/^```sh$/ { on = 1; print "echo == step " ++n; next } /^```/ { on = 0 } on' docs/operations.md \
        >"$scratch/steps"
    [ "$(grep -c '^echo == step' "$scratch/steps")" -ge 5 ]
    cp "$scratch/steps" "$work/debroot/srv/steps"
    in_root debroot "bash -euo pipefail /srv/steps; echo == done" offline | tee "$scratch/operations"
    grep -qx '== done' "$scratch/operations"
}

deb_again() {
    has_root debroot
    in_root debroot "echo '# mine' >>/etc/dlock/dlockd.toml
        install -d -o dlock -g dlock -m 700 /var/lib/dlock
        touch /var/lib/dlock/epoch
        dpkg -r dlock-server
        kept() { grep -qx '# mine' /etc/dlock/dlockd.toml; test -e /var/lib/dlock/epoch; }
        test ! -e /usr/bin/dlockd
        kept
        dpkg -i /srv/dlock-server_*.deb
        test -x /usr/bin/dlockd
        kept
        dpkg -r dlock-server
        mount -t tmpfs none /var/lib/dlock && touch /var/lib/dlock/epoch
        dpkg -P dlock-server
        test -e /var/lib/dlock/epoch # mounted: perhaps another host's as well
        umount /var/lib/dlock
        dpkg -i /srv/dlock-server_*.deb
        dpkg -P dlock-server
        test ! -e /etc/dlock
        test ! -e /var/lib/dlock
        dpkg -i /srv/dlock-server_*.deb
        grep -q '^state_file' /etc/dlock/dlockd.toml
        if grep -qx '# mine' /etc/dlock/dlockd.toml; then false; fi"
}
