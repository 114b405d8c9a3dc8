#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The service, under a real systemd (service-vm.sh): each check is a line `ok` or `FAILED`.
set -uo pipefail
failed=0

check() { # name command...
    local name=$1
    shift
    if "$@" >/tmp/check 2>&1; then
        echo "ok     $name"
    else
        failed=1
        echo "FAILED $name"
        sed 's/^/       /' /tmp/check
        systemctl status --no-pager --lines 5 dlockd 2>&1 | sed 's/^/       /'
    fi
}

until_true() { # seconds command...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { "$@"; return 1; }
        sleep 0.05
    done
}

main_pid() { systemctl show -p MainPID --value dlockd; }
serves() { dlock status --json | grep -q '"recovering": *false'; }
is_another() { [ "$(main_pid)" != "$1" ] && [ "$(main_pid)" != 0 ] && serves; }
as_alice() { setpriv --reuid alice --regid alice --init-groups "$@"; }
as_dlock() { setpriv --reuid dlock --regid dlock --init-groups "$@"; }
set_key() { sed -i "s/^$1 = .*/$1 = $2/" /etc/dlock/dlockd.toml; }
offers() { dlock status --json | grep -qE "\"$1\": *$2"; }

useradd --system --create-home --user-group alice
ip link set lo up

check "starts" systemctl start dlockd
check "is of the type notify, and active" test "$(systemctl show -p Type,ActiveState --value dlockd | xargs)" = "notify active"
says_so() { systemctl show -p StatusText --value dlockd | grep "$1"; }
check "tells its status" says_so "^serves on 127.0.0.1:21616"
check "runs as dlock" test "$(ps -o user= -p "$(main_pid)")" = dlock
check "locks as much memory as it wants" grep "Max locked memory *unlimited" "/proc/$(main_pid)/limits"
check "the journal has priorities" sh -c 'journalctl -u dlockd -p info -o json | grep "\"PRIORITY\":\"6\"" | grep "a primary serves"'
check "root asks the admin socket" dlock status
check "alice may not" sh -c '! setpriv --reuid alice --regid alice --init-groups dlock status'
check "serves over verbs in its sandbox" offers verbs '"'
check "alice locks over verbs" as_alice env DLOCK_FABRIC=verbs dlock exec by-verbs --wait 10 -- true
check "alice locks over tcp" as_alice env DLOCK_FABRIC=tcp dlock exec by-tcp --wait 10 -- true

# ---- kill -9: restarted, locks kept (dlock exec looks for its primary every third of the lease) ----
as_alice dlock exec kept --lease 60 -- sleep 60 >/tmp/kept 2>&1 &
keeper=$!
held() { dlock locks --json | grep -q '"name": *"kept"' && dlock clients --json | grep -q '"handles": *1'; }
check "a lock is held" until_true 60 held
before=$(main_pid)
kill -KILL "$before"
check "killed, it recovers, and its status says so" until_true 30 says_so "^recovers: of 1 client"
check "then it serves" until_true 90 is_another "$before"
check "and says that" until_true 5 says_so "^serves on 127.0.0.1:21616"
check "the lock is held by its client" sh -c '! dlock exec kept --wait 0 -- true && dlock locks --json | grep "\"name\": *\"kept\""'
check "and its command has ended well" wait "$keeper"

# ---- watchdog ----
before=$(main_pid)
kill -STOP "$before"
check "stopped, it is replaced by the watchdog" until_true 120 is_another "$before"
check "the journal says so" sh -c 'journalctl -u dlockd | grep -i "watchdog timeout"'

# ---- SIGHUP ----
before=$(main_pid)
check "reloads without TLS" systemctl reload dlockd
check "and is the same process" test "$(main_pid)" = "$before"

# ---- shared memory, and who may use the admin socket ----
set_key verbs '"off"'
set_key admin_for_group true
check "restarts" systemctl restart dlockd
check "offers shared memory" offers shm true
check "dlock's own clients use it" as_dlock env DLOCK_FABRIC=shm dlock exec by-shm --wait 10 -- true
check "alice may not map it" sh -c '! setpriv --reuid alice --regid alice --init-groups env DLOCK_FABRIC=shm dlock exec by-shm --wait 10 -- true'
check "and uses tcp" as_alice dlock exec by-tcp --wait 10 -- true
set_key shm_users '["alice"]'
check "restarts with alice among shm_users" systemctl restart dlockd
check "alice maps it" as_alice env DLOCK_FABRIC=shm DLOCK_PRIMARY_USER=dlock dlock exec by-shm --wait 10 -- true
check "not without her word" sh -c '! setpriv --reuid alice --regid alice --init-groups env DLOCK_FABRIC=shm dlock exec by-shm --wait 10 -- true'
usermod -aG dlock alice
check "of the group, alice asks the admin socket" as_alice dlock status

# From the stop of the old primary to the end of the new one's recovery, in ms; systemd's own lines as well.
timeline() { # since
    journalctl -o short-unix -u dlockd --since "@$1" |
        awk -v ended='stopping|has stopped|serves on|recovered|Stopping|Stopped|Starting|Started' '
            $0 ~ ended { first = first ? first : $1; $2 = $3 = ""; printf "%7d ms %s\n", ($1 - first) * 1000, $0 }' |
        cut -c 1-120
}

# ---- upgrade in place, under load ----
for fabric in tcp shm; do
    rm -f /tmp/stop
    as_alice env DLOCK_FABRIC=$fabric DLOCK_PRIMARY_USER=dlock DLOCK_PRIMARIES=127.0.0.1 DLOCK_HORIZON_S=60 /srv/load 21616 /tmp/stop 20 >/tmp/load 2>/tmp/load.log &
    load=$!
    check "holds 20 locks over $fabric" until_true 60 grep -q holding /tmp/load
    before=$(main_pid) since=$(date +%s)
    if [ "$fabric" = tcp ]; then
        check "the next version is installed" dpkg -i /srv/next/dlock-server.deb
    else
        check "the version before is installed again" sh -c 'dpkg -i /srv/dlock-server_*.deb'
    fi
    check "another process serves" until_true 90 is_another "$before"
    worked=$(dlock locks --json | grep -c '"name": *"held')
    check "the new one knows the 20 locks" test "$worked" = 20
    sleep 3 # in which the rival has tried them
    touch /tmp/stop
    check "no lock is lost over $fabric" wait "$load"
    sed 's/^/       /' /tmp/load
    timeline "$since" | sed 's/^/       /'
    echo "       load average $(cut -d ' ' -f 1 /proc/loadavg)"
done
check "own changes of the configuration stay" grep -qx 'verbs = "off"' /etc/dlock/dlockd.toml

systemd-analyze security --no-pager dlockd | tail -n 1 | sed 's/^/       /'
exposure=$(systemd-analyze security --no-pager dlockd | sed -n 's/.*Overall exposure level.*: \([0-9.]*\).*/\1/p')
check "exposure $exposure is at most 3.0" awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 3.0) }'

check "stops" systemctl stop dlockd
check "ended by success" test "$(systemctl show -p Result --value dlockd)" = success
check "removed, the service is gone" sh -c 'dpkg -r dlock-server && ! systemctl is-active dlockd && test -d /var/lib/dlock'

# ---- the same service from the rpms: their scriptlets while systemd runs ----
by_rpm() { rpm --nodeps --nosignature "$@"; }
if command -v rpm >/dev/null; then
    check "the debs are purged" dpkg -P dlock-server dlock-tools libdlock-dev libdlock0
    mkdir -p /etc/systemd/system-preset
    echo "enable dlockd.service" >/etc/systemd/system-preset/00-test.preset
    check "the rpms are installed" by_rpm -i /srv/rpm-now/*.rpm
    set_key verbs '"off"'
    check "enabled, as the preset says" systemctl is-enabled dlockd
    check "starts" systemctl start dlockd
    as_alice dlock exec kept --lease 60 -- sleep 60 >/tmp/kept 2>&1 &
    keeper=$!
    check "a lock is held" until_true 60 held
    before=$(main_pid)
    check "an upgrade restarts it" by_rpm -U /srv/rpm-next/*.rpm
    check "another process serves" until_true 90 is_another "$before"
    check "and the lock is held by its client" sh -c '! dlock exec kept --wait 0 -- true'
    kill "$keeper"
    wait "$keeper"
    check "own changes of the configuration stay here, too" grep -qx 'verbs = "off"' /etc/dlock/dlockd.toml
    check "erased, it is stopped" sh -c 'rpm -e umdk-dlock-server && ! systemctl is-active dlockd'
    check "no process of it is left" sh -c '! pgrep -x dlockd'
    check "the state stays" test -e /var/lib/dlock/epoch
else
    echo "skipped: rpm is not in this root"
fi
[ "$failed" = 0 ] && echo "== done"
