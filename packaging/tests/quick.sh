#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# What can be checked of the packages in seconds, without making them: PREFIX (installed by
# cmake-install.sh) DLOCKD. The rest is packaging/tests/run.sh.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
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

installed_is() { # mode file-below-the-prefix
    [ "$(stat -c %a "$prefix/$2")" = "$1" ] || { echo "$2: not of the mode $1"; return 1; }
}

what_is_installed_can_be_read() {
    local part name
    for part in c s m; do
        installed_is 755 "lib64/libdlock$part.so.0.0.1"
        installed_is 644 "lib64/pkgconfig/libdlock$part.pc"
        [ "$(readlink "$prefix/lib64/libdlock$part.so.0")" = "libdlock$part.so.0.0.1" ]
        [ "$(readlink "$prefix/lib64/libdlock$part.so")" = "libdlock$part.so.0" ]
    done
    for name in include/*.h; do installed_is 644 "include/ub/umdk/ulock/dlock/${name#include/}"; done
}

symbols_have_versions() {
    local part
    for part in c s m; do
        ! nm -D --defined-only "$prefix/lib64/libdlock$part.so" | grep -v ' A ' |
            grep -v -e '@@DLOCK_26\.06$' -e ' dlock_[a-z_]*@@DLOCK_API_1$' || return 1
    done
}

# A user's program: it has the packed crates, and else what the workspace was built with.
a_rust_program_is_built_from_the_crates() {
    local tour=$scratch/tour crate port pid failed=0
    scripts/crates.sh || return $?
    mkdir -p "$scratch/crates" "$tour/src"
    for crate in core fabric client; do
        tar -xzf "$(ls -t "$target_dir/package/dlock-$crate"-[0-9]*.crate | head -n 1)" -C "$scratch/crates"
        mv "$scratch/crates/dlock-$crate"-[0-9]* "$scratch/crates/$crate"
    done
    cp dlock-client/examples/tour.rs "$tour/src/main.rs"
    cp Cargo.lock "$tour"
    {
        printf '[package]\nname = "tour"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
        printf '[dependencies]\ndlock-client = { path = "../crates/client" }\n'
        sed -n '/^tokio = /p' Cargo.toml
        sed -n '/^\[profile.dev\]/,/^$/p' Cargo.toml
        printf '[patch.crates-io]\n'
        for crate in core fabric; do echo "dlock-$crate = { path = \"../crates/$crate\" }"; done
    } >"$tour/Cargo.toml"
    CARGO_TARGET_DIR="$target_dir" cargo build --quiet --offline --manifest-path "$tour/Cargo.toml"
    "$dlockd" --port 0 --verbs off --admin-socket "$scratch/tour.sock" >"$scratch/tour.ready" 2>&1 &
    pid=$!
    for _ in $(seq 100); do ! grep -q ready "$scratch/tour.ready" || break; sleep 0.1; done
    port=$(sed -n 's/^dlockd ready: listening on 127.0.0.1:\([0-9]*\),.*/\1/p' "$scratch/tour.ready")
    timeout 120 "$target_dir/debug/tour" "$port" "${dlockd%/*}/dlock" "$scratch/tour.sock" || failed=1
    kill "$pid"
    wait "$pid" || failed=1
    return "$failed"
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

# Most of them can go without that the exposure rises above what is permitted.
the_unit_says_what_it_must() {
    local line home
    for line in Type=notify NotifyAccess=main User=dlock Group=dlock Restart=on-failure RestartSec=100ms \
        RestartSteps=10 RestartMaxDelaySec=15 WatchdogSec=20 \
        LimitMEMLOCK=infinity RuntimeDirectoryMode=0750 StateDirectory=dlock StateDirectoryMode=0700 \
        UMask=0077 CapabilityBoundingSet= AmbientCapabilities= NoNewPrivileges=yes RestrictSUIDSGID=yes \
        ProtectSystem=strict ProtectHome=yes PrivateTmp=yes ProtectClock=yes ProtectControlGroups=yes \
        ProtectHostname=yes ProtectKernelLogs=yes ProtectKernelModules=yes ProtectKernelTunables=yes \
        RemoveIPC=yes KeyringMode=private DevicePolicy=closed 'DeviceAllow=char-infiniband_verbs rw' \
        'RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK' RestrictNamespaces=yes \
        RestrictRealtime=yes LockPersonality=yes MemoryDenyWriteExecute=yes \
        SystemCallArchitectures=native SystemCallFilter=@system-service \
        'SystemCallFilter=~@privileged @keyring @chown @setuid @mount'; do
        grep -qxF -- "$line" packaging/service/dlockd.service.in || { echo "it lacks: $line"; return 1; }
    done
    line=$(sed -n 's/^StartLimitBurst=//p' packaging/service/dlockd.service.in)
    grep -q "after $line starts" docs/operations.md && ! grep -Eq 'after (ten|fifteen) (starts|times)' docs/operations.md ||
        { echo "docs/operations.md has another number of starts than $line"; return 1; }
    home=$(awk '$1 == "u" { print $(NF - 1) }' packaging/service/dlock.sysusers.conf)
    [ "$home" = /var/lib/dlock ] || { echo "the home of sysusers.d is no StateDirectory: $home"; return 1; }
}

# A scriptlet of the server's package with ARGUMENT, and what it calls, one line each.
scriptlet() { # %NAME ARGUMENT
    awk -v from="$1 dlock-server" '$0 == from { on = 1; next } /^%/ { on = 0 } on' umdk.spec \
        >"$scratch/scriptlet"
    [ -s "$scratch/scriptlet" ] || { echo "umdk.spec has no $1 dlock-server"; return 1; }
    PATH="$scratch/stubs:$PATH" CALLS="$scratch/calls" sh "$scratch/scriptlet" "$2"
}

calls() { # %NAME ARGUMENT expected-line...
    local name=$1 argument=$2
    shift 2
    : >"$scratch/calls"
    scriptlet "$name" "$argument" || { echo "$name $argument: exit status $?"; return 1; }
    diff <(for line in "$@"; do echo "$line"; done) "$scratch/calls" ||
        { echo "$name $argument: expected (<) and called (>)"; return 1; }
}

# rpm: the argument is the number of versions that are there afterwards.
rpm_scriptlets_do_what_they_must() {
    local name gecos user
    mkdir -p "$scratch/stubs"
    for name in getent groupadd useradd systemctl; do
        # shellcheck disable=SC2016 # for that sh
        printf '#!/bin/sh\n[ %s != getent ] || exit 2\necho "%s $*" >>"$CALLS"\n' "$name" "$name" \
            >"$scratch/stubs/$name"
        chmod +x "$scratch/stubs/$name"
    done
    gecos=$(sed -n 's/^u .*"\(.*\)".*/\1/p' packaging/service/dlock.sysusers.conf)
    user="useradd -r -g dlock -d /var/lib/dlock -M -s /sbin/nologin -c $gecos dlock"
    calls %pre 1 "groupadd -r dlock" "$user"
    calls %post 1 "systemctl --no-reload preset dlockd.service"
    calls %post 2
    calls %preun 1
    calls %preun 0 "systemctl --no-reload disable --now dlockd.service"
    calls %postun 0 "systemctl daemon-reload"
    calls %postun 1 "systemctl daemon-reload" "systemctl try-restart dlockd.service"
    # They fail for nothing: a transaction of rpm goes on all the same, and with half a package.
    for name in groupadd useradd systemctl; do printf '#!/bin/sh\nexit 1\n' >"$scratch/stubs/$name"; done
    for name in '%pre 1' '%post 1' '%preun 0' '%postun 0' '%postun 1'; do
        # shellcheck disable=SC2086 # two words
        scriptlet $name || { echo "$name fails"; return 1; }
    done
}

# Only `purge` takes the state, and not what is mounted there: it may be another host's as well.
the_state_outlives_the_deb() {
    local argument
    mkdir -p "$scratch/stubs-deb"
    # shellcheck disable=SC2016 # for that sh
    printf '#!/bin/sh\necho "rm $*" >>"$CALLS"\nexit 1\n' >"$scratch/stubs-deb/rm"
    chmod +x "$scratch/stubs-deb/rm"
    for argument in remove upgrade failed-upgrade abort-install abort-upgrade disappear purge; do
        : >"$scratch/calls"
        PATH="$scratch/stubs-deb:$PATH" CALLS="$scratch/calls" \
            sh packaging/debian/dlock-server.postrm "$argument" 1 || { echo "$argument fails"; return 1; }
        [ "$argument" = purge ] || [ ! -s "$scratch/calls" ] || { echo "$argument:"; cat "$scratch/calls"; return 1; }
    done
    grep -qx 'rm -rf --one-file-system --preserve-root=all /var/lib/dlock' "$scratch/calls"
}

# debs have no other file with it.
debian_copyright_has_the_licence() {
    diff LICENSE-MIT <(sed -n '/^ MIT License$/,/^ SOFTWARE\.$/{s/^ //;s/^\.$//;p}' packaging/debian/copyright)
}

# A prefix may have blanks.
pkg_config_quotes_blanks() {
    PKG_CONFIG_LIBDIR="$prefix/lib64/pkgconfig" pkg-config --define-variable=prefix='/a b' --cflags --libs \
        libdlockc >"$scratch/flags"
    grep -F -e '-I/a\ b/include/ub/umdk/ulock/dlock' "$scratch/flags" | grep -F -e '-L/a\ b/lib64' ||
        { cat "$scratch/flags"; return 1; }
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
check "installed files" what_is_installed_can_be_read
check "hardened" libraries_are_hardened
check "symbols have versions" symbols_have_versions
check "a program linked before runs" an_old_program_runs
check "build lines, find_package, pkg-config" use_installed "" "$prefix" lib64 "$dlockd" "$scratch/use"
check "a Rust program, from the crates" a_rust_program_is_built_from_the_crates
check "the service is tight" the_unit_is_tight
check "the unit says what it must" the_unit_says_what_it_must
check "the rpms' scriptlets" rpm_scriptlets_do_what_they_must
check "the deb's state" the_state_outlives_the_deb
check "the debs' licence" debian_copyright_has_the_licence
check "pkg-config, blanks" pkg_config_quotes_blanks
check "the service's configuration is valid" the_configuration_is_valid
for shell in bash zsh fish; do check "completions in $shell" bash packaging/tests/completions.sh "$shell" docs/completions; done
check "manual pages" manuals_are_read
echo "$done_well passed, $failures failed, $omitted skipped"
[ "$failures" = 0 ]
