# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # work, scratch, root, version are of packaging/tests/run.sh
# Sourced by packaging/tests/run.sh: its parts.

# grep that fails if it finds something; behind `!` a failure would end nothing.
absent() {
    if grep "$@"; then return 1; fi
}

archives() {
    [ -e "$work/2/umdk-$version.tar.gz" ] || {
        scripts/dist.sh "$work/1"
        scripts/dist.sh "$work/2"
    }
    cmp "$work/1/umdk-$version.tar.gz" "$work/2/umdk-$version.tar.gz"
    # Nothing of this machine, and nothing without its source, is in it.
    tar -tf "$work/1/umdk-$version.tar.gz" >"$scratch/listed"
    absent -E '\.(o|obj|a|lib|so|dll|exe|orig)$' "$scratch/listed"
    grep -q '/THIRD-PARTY-LICENCES.txt$' "$scratch/listed"
}

# Builds; the second time compares with the first.
rpms() {
    [ -d "$work/rpm$1/RPMS" ] || scripts/rpm.sh "$work/rpm$1"
    [ "$1" = 1 ] || same "$work/rpm1" "$work/rpm2" '*.rpm'
}

debs() {
    [ -e "$work/deb$1/done" ] || { scripts/deb.sh "$work/deb$1" && touch "$work/deb$1/done"; }
    [ "$1" = 1 ] || same "$work/deb1" "$work/deb2" '*.deb'
}

same() { # folder folder pattern
    local first second
    first=$(cd "$1" && find . -name "$3" -exec sha256sum {} + | sort -k2)
    second=$(cd "$2" && find . -name "$3" -exec sha256sum {} + | sort -k2)
    [ -n "$first" ]
    diff <(echo "$first") <(echo "$second")
    echo "$first" | awk '{ print "identical:", $2 }'
}

installed_rpms() {
    find "$work/rpm1/RPMS" -name '*.rpm' ! -name '*debuginfo*' ! -name '*debugsource*'
}

rpm_into() { # root rpm-arguments: packages whose other requirements are the distribution's
    local into=$1
    shift
    rpm --root "$into" --dbpath /var/lib/rpm --nodeps --noscripts --notriggers --nosignature "$@"
}

rpm_root() {
    local into=$scratch/rpmroot rpms name
    mapfile -t rpms < <(installed_rpms)
    rm -rf "$into" && mkdir -p "$into"
    rpm_into "$into" -i "${rpms[@]}"
    rpm --root "$into" --dbpath /var/lib/rpm -qa | sort
    for name in lib devel example server tools; do
        rpm --root "$into" --dbpath /var/lib/rpm -q --quiet "umdk-dlock-$name"
        rpm --root "$into" --dbpath /var/lib/rpm -V --nodeps "umdk-dlock-$name"
    done
    # The files of the behaviour document, by package.
    (cd "$into" && ls -l usr/lib64/libdlock{c,s,m}.so.0.0.1 usr/lib64/libdlock{c,s,m}.so{,.0} \
        usr/include/ub/umdk/ulock/dlock/dlock{,_client_api,_server_api,_types}.h \
        usr/bin/dlock_{primary,client,client_object}_test usr/bin/dlock usr/bin/dlockd \
        etc/dlock/dlockd.toml usr/lib/systemd/system/dlockd.service usr/lib/sysusers.d/dlock.conf)
    for name in usr/lib64/libdlock{c,s,m}.so.0.0.1 usr/bin/dlock usr/bin/dlockd \
        usr/bin/dlock_{primary,client,client_object}_test; do
        hardened "$into/$name"
        ! readelf -W -S "$into/$name" | grep >/dev/null -E '\.(debug_info|symtab)' || { echo "$name: not stripped"; false; }
    done
    for name in usr/bin/dlock_{primary,client,client_object}_test; do
        nm -D "$into/$name" | grep >/dev/null __stack_chk_fail
    done
    # Where the debug information went.
    rpm -qpl "$work"/rpm1/RPMS/*/umdk-debuginfo-*.rpm | grep >/dev/null '/libdlockc.so.0.0.1-.*\.debug$'
    rpm -qp --requires "${rpms[@]}" | sort -u
    for name in devel example; do
        rpm -qp --requires "$work"/rpm1/RPMS/*/umdk-dlock-$name-*.rpm | grep >/dev/null '^umdk-dlock-lib'
    done
    for name in "${rpms[@]}"; do
        [ -n "$(rpm -qp --licensefiles "$name")" ] || { echo "$name: without its licence"; false; }
    done
    LIB64=ON use_installed "$into" /usr lib64 "$into/usr/bin/dlockd" "$scratch/use-rpm"
}

# Empty packages of the names and versions before, replaced by these.
rpm_upgrade() {
    local before=$scratch/before into name version_before release rpms
    mapfile -t rpms < <(installed_rpms)
    awk '!/^#/ { print $2 }' packaging/previous.txt | sort -u >"$scratch/versions"
    while read -r version_before <&3; do
        rm -rf "$before" && mkdir -p "$before"
        into=$before/root
        mkdir -p "$into"
        while read -r name _ release; do
            printf '%s\n' "Name: $name" "Version: $version_before" "Release: $release" 'Summary: x' \
                'License: x' '%description' 'x' '%files' >"$before/$name.spec"
            rpmbuild -bb --quiet --define "_topdir $before" "$before/$name.spec"
        done < <(awk -v v="$version_before" '$2 == v' packaging/previous.txt)
        mapfile -t old < <(find "$before/RPMS" -name '*.rpm')
        rpm_into "$into" -i "${old[@]}"
        rpm_into "$into" -U "${rpms[@]}"
        rpm --root "$into" --dbpath /var/lib/rpm -qa | sort >"$before/after"
        absent -F -- "-$version_before-" "$before/after"
        [ "$(grep -c -F -- "-$version-" "$before/after")" = "${#rpms[@]}" ]
        echo "$version_before is replaced by $version"
    done 3<"$scratch/versions"
}

rpm_lint() {
    rpmlint -c packaging/rpmlint.toml umdk.spec "$work"/rpm1/SRPMS/*.rpm "$work"/rpm1/RPMS/*/*.rpm \
        >"$scratch/rpmlint" 2>&1 || true
    cat "$scratch/rpmlint"
    grep -qE ' 0 errors' "$scratch/rpmlint"
}

deb_lint() {
    # As root it says so, and goes on.
    lintian --allow-root --fail-on error --tag-display-limit 0 "$work"/deb1/*.changes
}
