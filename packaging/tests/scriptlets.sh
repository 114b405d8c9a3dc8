#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# In a root of its own, with the rpms in /srv/now and those of a later release in /srv/next: they
# are installed, upgraded, erased and installed again, by rpm with their scriptlets. Each check is a
# line `ok` or `FAILED`.
set -uo pipefail
failed=0
config=/etc/dlock/dlockd.toml
wants=/etc/systemd/system/multi-user.target.wants/dlockd.service

check() { # name command...
    local name=$1
    shift
    if "$@" >/tmp/check 2>&1; then
        echo "ok     $name"
    else
        failed=1
        echo "FAILED $name"
        sed 's/^/       /' /tmp/check
    fi
}

# What the packages need is Debian's, and not in rpm's database. A scriptlet that fails is a
# warning.
by_rpm() {
    rpm --nodeps --nosignature "$@" >/tmp/rpm 2>&1 || { cat /tmp/rpm; return 1; }
    if grep -i 'warning:.*scriptlet\|error' /tmp/rpm; then return 1; fi
}

preset() { echo "$1 dlockd.service" >/etc/systemd/system-preset/00-test.preset; }
is_mine() { grep -qx '# mine' "$config"; }
is_next() { grep -qx '# Of the next release.' "$config"; }
has_state() { [ "$(cat /var/lib/dlock/epoch)" = 7 ] && [ "$(stat -c %U /var/lib/dlock/epoch)" = dlock ]; }
has_user() { [ "$(getent passwd dlock)" = "$user" ]; }
has_version() { [ "$(rpm -q --qf '%{release}' "umdk-dlock-$1")" = "$2" ]; }
user_is_as_sysusers_says() {
    local users=/tmp/users found
    mkdir -p "$users/etc"
    systemd-sysusers --root="$users" /usr/lib/sysusers.d/dlock.conf
    found=$(grep ^dlock: "$users/etc/passwd" | cut -d: -f1,5,6,7)
    # The shell is nologin by either of its paths.
    [ "${found/\/usr\/sbin/\/sbin}" = "$(cut -d: -f1,5,6,7 <<<"$user" | sed 's#/usr/sbin#/sbin#')" ] ||
        { echo "sysusers: $found; %pre: $user"; return 1; }
    [ "$(cut -d: -f3 <<<"$user")" -lt 1000 ] && passwd -S dlock | grep '^dlock L'
}

mkdir -p /etc/systemd/system-preset
preset enable
check "there is no user before" sh -c '! getent passwd dlock'
check "installed" by_rpm -i /srv/now/*.rpm
user=$(getent passwd dlock || true)
check "%pre has made the user that sysusers.d describes" user_is_as_sysusers_says
check "%post has enabled the service, as the preset says" test -L "$wants"
check "all files are as packaged" rpm -V --nodeps umdk-dlock-{lib,devel,example,server,tools}
check "ldconfig has run" test -e /etc/ld.so.cache

# ---- the operator's work: the configuration, the state, the service is disabled ----
echo '# mine' >>"$config"
install -d -o dlock -g dlock -m 700 /var/lib/dlock
install -o dlock -g dlock -m 600 /dev/null /var/lib/dlock/epoch
echo 7 >/var/lib/dlock/epoch
systemctl --quiet disable dlockd

check "upgraded" by_rpm -U /srv/next/*.rpm
check "is the next release" has_version server 2
check "a changed configuration is kept" is_mine
check "the next one lies beside it" grep -qx '# Of the next release.' "$config.rpmnew"
check "the state is kept" has_state
check "the user is the same" has_user
check "what was disabled stays so" test ! -e "$wants"

# ---- erased ----
rm -f "$config.rpmnew"
systemctl --quiet enable dlockd
check "erased" by_rpm -e umdk-dlock-server
check "the program is gone" test ! -e /usr/bin/dlockd
check "%preun has disabled the service" sh -c "! test -L $wants"
check "the changed configuration is saved" grep -qx '# mine' "$config.rpmsave"
check "and not in force" test ! -e "$config"
check "the state stays" has_state
check "and so does its user" has_user

# ---- installed again; the preset of this distribution does not enable services ----
preset disable
check "installed again" by_rpm -i /srv/next/umdk-dlock-server-*.rpm
check "the configuration is the packaged one" sh -c "! grep -qx '# mine' $config"
check "the saved one is still there" grep -qx '# mine' "$config.rpmsave"
check "the state is still there" has_state
check "the user is the same as before" has_user
check "not enabled, as the preset says" test ! -e "$wants"

# ---- a configuration that was not changed follows the package ----
check "back to the release before" by_rpm -U --oldpackage /srv/now/*.rpm
check "an unchanged configuration is replaced" sh -c "! grep -qx '# Of the next release.' $config"
check "upgraded once more" by_rpm -U /srv/next/*.rpm
check "and is replaced again" is_next
check "without a second file" test ! -e "$config.rpmnew"

rpm -ql umdk-dlock-{lib,devel,example,server,tools} | sort -u >/tmp/files
check "all erased" by_rpm -e umdk-dlock-{lib,devel,example,server,tools}
# shellcheck disable=SC2016 # for that sh
check "no file of theirs is left" sh -c 'while read -r name; do
        if [ -f "$name" ] || [ -L "$name" ]; then echo "$name"; fi; done </tmp/files | grep . && exit 1; true'
check "the state and the saved configuration are" test -e /var/lib/dlock/epoch -a -e "$config.rpmsave"
[ "$failed" = 0 ] && echo "== done"
