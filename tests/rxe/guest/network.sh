#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck disable=SC1091,SC2154
# Runs in the guest, in the new root, before the command: makes the network that the runner asked
# for (NET, NODE, NETEM of vars) and notes what the command is told about it in /run/rxe-vm.env.
#
#   loop   rxe0 on r0 10.77.0.1; r0 is one end of a veth whose other end is not used
#   pair   rxe0 on r0 10.77.0.1  <-- veth -->  rxe1 on r1 10.77.0.2
#   nodes  rxe0 on r0 10.77.0.(1 + NODE), the virtio network card
set -e
. /run/rxe-vm/vars
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
told=/run/rxe-vm.env
: >$told
ip link set lo up
mkdir -p /usr/local/sbin
cp /run/rxe-vm/rxe-link /usr/local/sbin/rxe-link
chmod 755 /usr/local/sbin/rxe-link

sysctl_set() { echo "$2" >"/proc/sys/$1" 2>/dev/null || :; }
mac() { echo "02:77:00:00:00:0$1"; }

# The index of the RoCE v2 GID of device $1 made from address $2 (::ffff:a.b.c.d). RoCE v1 has one
# with the same bytes on some devices: the type decides.
gid_index() {
    # shellcheck disable=SC2046,SC2183 # four words are wanted
    wanted=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' $(echo "$2" | tr . ' '))
    port=/sys/class/infiniband/$1/ports/1
    tries=0
    while [ $tries -lt 100 ]; do
        for gid in "$port"/gids/*; do
            read -r value <"$gid" || continue
            [ "$value" = "$wanted" ] || continue
            case $(cat "$port/gid_attrs/types/${gid##*/}" 2>/dev/null) in
            *v2*) echo "${gid##*/}" && return 0 ;;
            esac
        done
        tries=$((tries + 1))
        sleep 0.05
    done
    echo "no GID for $2 on $1" >&2
    return 1
}

tell() { # suffix, device, address
    index=$(gid_index "$2" "$3")
    echo "RXE_VM_DEV$1=$2 RXE_VM_IP$1=$3 RXE_VM_GID_INDEX$1=$index" >>$told
}

net_loop() {
    ip link add r0 address "$(mac 1)" type veth peer name r0p address "$(mac 9)"
    ip addr add 10.77.0.1/24 dev r0
    ip link set r0 up
    ip link set r0p up
    rdma link add rxe0 type rxe netdev r0
    tell '' rxe0 10.77.0.1
    echo "RXE_VM_PEER_IP=10.77.0.1" >>$told
}

# Both ends are ours, yet packets between them must not take the short way over lo: these tables
# are looked into before the local one, and packets that come from ourselves are accepted.
net_pair() {
    ip link add r0 address "$(mac 1)" type veth peer name r1 address "$(mac 2)"
    for c in all default r0 r1; do
        sysctl_set net/ipv4/conf/$c/accept_local 1
        sysctl_set net/ipv4/conf/$c/rp_filter 0
        sysctl_set net/ipv4/conf/$c/arp_ignore 1
        sysctl_set net/ipv4/conf/$c/arp_announce 2
    done
    for n in 0 1; do
        me=10.77.0.$((n + 1))
        you=10.77.0.$((2 - n))
        ip rule add pref $((5 + n)) from $me to $me lookup local # a device to itself: loopback queue pairs
        ip rule add pref $((10 + n)) iif lo from $me to $you lookup $((100 + n))
        ip rule add pref $((20 + n)) oif r$n lookup $((100 + n)) # what rxe asks
        ip addr add $me/24 dev r$n
    done
    # User 1001 lives on the second host: what he sends to the first one leaves through r1.
    ip rule add pref 15 uidrange 1001-1001 to 10.77.0.1 lookup 101
    # Without the cable there is no way, and not that over lo.
    for table in 100 101; do ip route add unreachable default metric 9999 table $table; done
    rxe-link r0 up
    rxe-link r1 up
    ip rule add pref 100 lookup local
    ip rule del pref 0
    rdma link add rxe0 type rxe netdev r0
    rdma link add rxe1 type rxe netdev r1
    tell '' rxe0 10.77.0.1
    tell 2 rxe1 10.77.0.2
    echo "RXE_VM_PEER_IP=10.77.0.2" >>$told
}

net_nodes() {
    card=
    for i in /sys/class/net/*; do
        case $(readlink -f "$i/device" 2>/dev/null) in *virtio*) card=${i##*/} ;; esac
    done
    [ -n "$card" ] || { echo "no virtio network card"; exit 1; }
    ip link set "$card" down
    ip link set "$card" name r0
    ip addr add 10.77.0.$((NODE + 1))/24 dev r0
    ip link set r0 up
    rdma link add rxe0 type rxe netdev r0
    tell '' rxe0 10.77.0.$((NODE + 1))
    echo "RXE_VM_PEER_IP=10.77.0.$((2 - NODE))" >>$told
}

case $NET in
none | bare) exit 0 ;;
*) "net_$NET" ;;
esac
if [ -n "$NETEM" ]; then
    for i in r0 r1; do
        [ -e /sys/class/net/$i ] || continue
        # shellcheck disable=SC2086 # arguments
        tc qdisc add dev $i root netem $NETEM
    done
fi
