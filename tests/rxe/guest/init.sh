#!/bin/busybox sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=dash disable=SC1091,SC2154
# Process 1 of the guest, in the initramfs, under busybox. In this order:
#
#   stage1 modules -> control port -> job (9p) -> stage2 modules in the background
#   host root (9p, read-only) + package layers (9p) + tmpfs = overlay on /new
#   network.sh inside it -> "ready" to the runner -> its "go" -> the command -> "exit N", "end"
#
# The runner reads the control port line by line: boot, ready, exit N, end, broken REASON.
# stdout and stderr end with a mark (\0 and a random token), so that the runner knows when it has
# all of them; it then ends the machine.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

control=no
die() {
    echo "init: $*" >/dev/console
    [ $control = yes ] && echo "broken $*" >&9
    sleep 1
    poweroff -f
}

insert() {
    while read -r module; do
        insmod "/lib/modules/$module.ko" || echo "init: insmod $module failed" >/dev/console
    done <"/lib/modules/$1"
}

insert stage1
tries=0
while :; do
    found=
    for port in /sys/class/virtio-ports/*; do
        read -r name 2>/dev/null <"$port/name" || continue
        eval "port_$name=/dev/${port##*/}"
        found="$found $name"
    done
    case $found in *ctl*) break ;; esac
    tries=$((tries + 1))
    [ $tries -gt 200 ] && die "no control port"
    sleep 0.05
done
exec 9<>"$port_ctl"
control=yes
echo boot >&9

plan9="trans=virtio,version=9p2000.L,msize=262144"
mount -t 9p -o "$plan9,ro,cache=loose" job /job || die "cannot mount the job folder"
. /job/vars
(
    insert stage2net
    [ "$NET" = bare ] || insert stage2
    echo ok >/stage2
) &
modules=$!

# The root: the host's, the missing packages over it, a tmpfs on top that takes what is written.
mount -t 9p -o "$plan9,ro,cache=loose" host /host || die "cannot mount the host's root"
lower=/host
i=0
while [ $i -lt "$LAYERS" ]; do
    mount -t 9p -o "$plan9,ro,cache=loose" layer$i /layer$i || die "cannot mount layer $i"
    lower=/layer$i:$lower
    i=$((i + 1))
done
mount -t tmpfs -o mode=755 tmpfs /rw
mkdir /rw/up /rw/work
mount -t overlay -o "lowerdir=$lower,upperdir=/rw/up,workdir=/rw/work,index=off,metacopy=off" \
    overlay /new || die "cannot mount the overlay"
new=/new
mkdir -p $new/proc $new/sys $new/dev $new/run $new/tmp
mount -t proc proc $new/proc
mount -t sysfs sys $new/sys
mount -t devtmpfs dev $new/dev
mount -t tmpfs -o mode=755 run $new/run
mkdir -p $new/run/lock $new/run/rxe-vm $new/dev/pts $new/dev/shm
mount -t devpts devpts $new/dev/pts
mount -t tmpfs -o mode=1777 shm $new/dev/shm
if [ ! -e $new/dev/fd ]; then
    ln -s /proc/self/fd $new/dev/fd
    ln -s /proc/self/fd/0 $new/dev/stdin
    ln -s /proc/self/fd/1 $new/dev/stdout
    ln -s /proc/self/fd/2 $new/dev/stderr
fi
i=0
while [ $i -lt "$SHARES" ]; do
    eval "folder=\$SHARE$i"
    mkdir -p "$new$folder"
    mount -t 9p -o "$plan9,rw,cache=mmap,access=any" share$i "$new$folder" ||
        die "cannot mount $folder read-write"
    i=$((i + 1))
done
mount --bind /job $new/run/rxe-vm

wait $modules
[ -e /stage2 ] || die "the modules could not be loaded"
hostname "rxe$NODE"
said=$(chroot $new /bin/sh /run/rxe-vm/network.sh 2>&1) || die "network set-up: $said"

mkfifo /fifo_out /fifo_err
(
    cat </fifo_out
    printf '\0%s' "$MARK"
) >"$port_out" &
copy_out=$!
(
    cat </fifo_err
    printf '\0%s' "$MARK"
) >"$port_err" &
copy_err=$!
# stdin comes in chunks, each after a line with its length; 0 ends it. (Closing the port at the
# other end would end it too, but lose what qemu has not delivered yet.)
if [ "$STDIN" = 1 ]; then
    mkfifo /fifo_in
    while read -r n && [ "$n" -gt 0 ]; do
        dd "bs=$n" count=1 iflag=fullblock 2>/dev/null || break
    done <"$port_in" >/fifo_in &
    exec 8</fifo_in
else
    exec 8</dev/null
fi
echo ready >&9
read -r _ <&9

ulimit -l unlimited
ulimit -n 65536
ulimit -c 0
# In a shell of its own, whose "Killed" then goes to the console instead of the command's stderr.
(exec chroot $new /bin/sh /run/rxe-vm/command.sh <&8 >/fifo_out 2>/fifo_err 9>&- 8<&-)
status=$?

# Processes the command left behind may hold its output open: a second for them, then the end.
copying() { kill -0 $copy_out 2>/dev/null || kill -0 $copy_err 2>/dev/null; }
i=0
while [ $i -lt 20 ] && copying; do
    i=$((i + 1))
    usleep 50000
done
if copying; then
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/root")" = $new ] && kill -9 "${process##*/}"
    done 2>/dev/null
fi
echo "exit $status" >&9
wait $copy_out $copy_err
sync
echo end >&9
while :; do sleep 100; done
