#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# What can be checked of the packages in seconds, without making them: PREFIX (installed by
# cmake-install.sh) DLOCKD. The rest is scripts/packages-test.sh.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/packages.sh
. "$root/scripts/packages.sh"
prefix=$1 dlockd=$2
begin
done_well=0 failures=0 omitted=0

check() { # name command...
    local name=$1 rc
    shift
    # Not in a condition, where a failing line of a function would not end it.
    set +e
    (set -e; "$@") >"$scratch/check.log" 2>&1 </dev/null
    rc=$?
    set -e
    case $rc in
    0) done_well=$((done_well + 1)) && echo "ok      $name" ;;
    77) omitted=$((omitted + 1)) && echo "skipped $name: $(tail -n 1 "$scratch/check.log")" ;;
    *) failures=$((failures + 1)) && echo "FAILED  $name" && sed 's/^/        /' "$scratch/check.log" ;;
    esac
}

needs() {
    have "$1" || { echo "$1 is not installed"; exit 77; }
}

one_version() {
    local failed=0 page part
    # What Cargo takes: no zero in front of a number.
    version_is "$(sed -E 's/\.0+([0-9])/.\1/g' <<<"$version")" Cargo.toml \
        "$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
    for page in CMakeLists.txt cmake/CMakeLists.txt; do
        version_is "$version" "$page" \
            "$(sed -n 's/^project(umdk_dlock[a-z_]* VERSION \([0-9.]*\) .*/\1/p' "$page")"
    done
    version_is "$version" "packaging/debian/changelog" \
        "$(sed -n '1s/^dlock (\([0-9.]*\)-.*/\1/p' packaging/debian/changelog)"
    version_is "$version" "%changelog of umdk.spec" \
        "$(sed -n '/^%changelog/{n;s/.* - \([0-9.]*\)-[0-9]*$/\1/p}' umdk.spec)"
    for page in docs/man/*; do
        version_is "$version" "$page" "$(sed -n 's/^\.TH .* "dlock \([0-9.]*\)" .*/\1/p' "$page")"
    done
    # What was built says the same.
    version_is "dlockd $version" "dlockd --version" "$("$dlockd" --version)"
    version_is "dlock $version" "dlock --version" "$("${dlockd%/*}/dlock" --version)"
    for part in c s m; do
        version_is "$version" "libdlock$part.pc" \
            "$(sed -n 's/^Version: //p' "$prefix/lib64/pkgconfig/libdlock$part.pc")"
    done
    page=$(find "$prefix" -name dlock-config-version.cmake)
    version_is "$version" "$page" "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$page")"
    return "$failed"
}

version_is() { # wanted where found; `failed` is of the caller
    [ "$3" = "$1" ] || { echo "$2: '$3', but umdk.spec has $version: '$1'"; failed=1; }
}

no_downgrade() {
    local name before release
    while read -r name before release; do
        case $name in '#'*|'') continue ;; esac
        [ "$(printf '%s\n%s\n' "$before-$release" "$version-1" | sort -V | tail -n 1)" = "$version-1" ] ||
            { echo "$name $before-$release is newer"; return 1; }
        grep -q "^%package ${name#umdk-}\$" umdk.spec || { echo "there is no $name any more"; return 1; }
    done <packaging/previous.txt
}

libraries_are_hardened() {
    local part
    for part in c s m; do hardened "$prefix/lib64/libdlock$part.so"; done
    hardened "$dlockd"
}

symbols_have_versions() {
    local part
    for part in c s m; do
        ! nm -D --defined-only "$prefix/lib64/libdlock$part.so" | grep -v ' A ' |
            grep -v '@@DLOCK_26\.06$' || return 1
    done
}

# A program that was linked with libraries without versions: those of the original, and ours of before.
an_old_program_runs() {
    local name
    for name in dserver_lib_init dserver_lib_deinit server_start; do
        echo "int $name(void) { return 0; }"
    done >"$scratch/old.c"
    cc -shared -fPIC -Wl,-soname,libdlocks.so.0 "$scratch/old.c" -o "$scratch/libdlocks.so"
    c++ packaging/tests/primary.cpp -I include -L "$scratch" -ldlocks -o "$scratch/old"
    ! readelf -W -V "$scratch/old" | grep >/dev/null DLOCK_26 || { echo "it has versions"; return 1; }
    LD_LIBRARY_PATH="$prefix/lib64" "$scratch/old" >"$scratch/said" 2>&1
    grep -qx 'refused: -1' "$scratch/said" || { cat "$scratch/said"; return 1; }
    ! grep -q 'version information' "$scratch/said"
}

the_unit_is_tight() {
    needs systemd-analyze
    local unit="$scratch/dlockd.service" exposure
    sed "s#@DLOCK_BIN@#${dlockd%/*}#; s#@DLOCK_ETC@#/etc#" packaging/service/dlockd.service.in >"$unit"
    systemd-analyze --man=no verify "$unit" || { echo "systemd-analyze verify refuses it"; return 1; }
    systemd-analyze security --offline=true "$unit" >"$scratch/exposure" 2>/dev/null ||
        { echo "this systemd-analyze looks at no files"; exit 77; }
    exposure=$(sed -n 's/.*Overall exposure level.*: \([0-9.]*\).*/\1/p' "$scratch/exposure")
    echo "exposure $exposure"
    awk -v found="$exposure" 'BEGIN { exit !(found != "" && found <= 3.0) }'
}

the_configuration_is_valid() {
    cmake -DIN=dlock-server/dlockd.toml -DOUT="$scratch/dlockd.toml" -P packaging/service/config.cmake
    grep -qx 'state_file = "/var/lib/dlock/epoch"' "$scratch/dlockd.toml"
    grep -qx 'admin_socket = "/run/dlock/dlockd.sock"' "$scratch/dlockd.toml"
    "$dlockd" --check-config --config "$scratch/dlockd.toml"
}

manuals_are_read() {
    needs man
    local page
    for page in docs/man/*; do
        LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>"$scratch/warnings" \
            >/dev/null
        [ ! -s "$scratch/warnings" ] || { echo "$page:"; cat "$scratch/warnings"; return 1; }
        have mandoc || continue
        # They have a version and no date, so that the same source makes the same pages.
        ! mandoc -Tlint -W warning "$page" | grep -v 'missing date' || return 1
    done
}

check "one version" one_version
check "no downgrade" no_downgrade
check "hardened" libraries_are_hardened
check "symbols have versions" symbols_have_versions
check "a program linked before runs" an_old_program_runs
check "build lines, find_package, pkg-config" use_installed "" "$prefix" lib64 "$dlockd" "$scratch/use"
check "the service is tight" the_unit_is_tight
check "the service's configuration is valid" the_configuration_is_valid
for shell in bash zsh fish; do check "completions in $shell" bash packaging/tests/completions.sh "$shell" docs/completions; done
check "manual pages" manuals_are_read
echo "$done_well passed, $failures failed, $omitted skipped"
[ "$failures" = 0 ]
