# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line."""
import argparse
import os

HELP = """\
Runs COMMAND, a program of this machine, in a throw-away virtual machine that has an RDMA device
in software (SoftRoCE, rdma_rxe). Nothing of this machine needs to support RDMA or virtualisation,
and after the first run neither root nor a network is needed.

COMMAND runs there as root, with the same working directory, arguments and environment. It sees
this machine's root file system read-only, under a layer in memory that takes what it writes and
vanishes with the virtual machine; /proc, /sys, /dev and /run are the virtual machine's own.
stdout and stderr arrive as they are written, each for itself. Standard input is empty unless
--stdin is given. SIGTERM, SIGINT, SIGHUP end the run; whatever ends the runner, SIGKILL included,
ends the virtual machine too.

exit status:
  COMMAND's; 128 + N if signal N killed it, 127 if it was not found, 126 if not executable
  77    it cannot run here, "rxe-vm: SKIP: REASON" on stderr (125 with DLOCK_RXE_REQUIRED=1)
  124   a time limit was reached
  125   the virtual machine could not be used: it did not start, its network could not be set
        up, its kernel crashed or COMMAND switched it off; the end of its console is printed
  128+N the runner itself got signal N
  `vm --prepare && vm COMMAND` tells these from a COMMAND that ends with such a status.

networks (--net):
  loop   one device, rxe0 on r0, 10.77.0.1, that talks to itself (the default)
  pair   two devices on the two ends of one virtual cable; what they send to each other really
         crosses it: tc netem (loss, delay), rxe-link r0 down|up, MTU
           rxe0 on r0, 10.77.0.1      rxe1 on r1, 10.77.0.2
         TCP crosses it too if the client binds its own address first. (`ip link set r0 down`
         loses the routes that make it so; rxe-link, on the PATH there, sets them again)
  nodes  two virtual machines joined by an Ethernet cable. COMMAND runs in both as soon as both
         are up. Node 0 has rxe0 on r0, 10.77.0.1; node 1 has rxe0 on r0, 10.77.0.2. Each line of
         output begins with [0] or [1]. The exit status is node 0's; if that is 0, node 1's
  none   the RDMA modules, but no device
  bare   no RDMA modules at all: what most machines look like

variables COMMAND gets:
  RXE_VM=1, RXE_VM_NET=NETWORK, RXE_VM_NODES=1|2, RXE_VM_NODE=0|1
  RXE_VM_DEV, RXE_VM_IP, RXE_VM_GID_INDEX (RoCE v2, IPv4), RXE_VM_PEER_IP
  RXE_VM_DEV2, RXE_VM_IP2, RXE_VM_GID_INDEX2: the second device, pair only

what it needs, and where it comes from:
  x86-64 Linux, python 3.8, qemu-system-x86_64 (7.2 for --net nodes). qemu is installed by apt if
  it is missing and that is permitted (root or a passwordless sudo, and not DLOCK_SETUP=no). The
  kernel, busybox-static, and those of iproute2, libibverbs1, ibverbs-providers, librdmacm1 and
  perftest that this machine lacks are downloaded by apt but not installed: they are unpacked in
  the cache and laid over the root in the virtual machine. Without apt, this machine's own
  installed kernel, busybox, iproute2 and rdma-core are used, if they are there.
  The cache, about 80 MB, is $DLOCK_RXE_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/dlock-rxe.

with cargo:
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/rxe/vm --" cargo test -p PACKAGE
"""


def default_cache():
    """Where kernels and packages are kept."""
    xdg = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return os.environ.get('DLOCK_RXE_CACHE') or os.path.join(xdg, 'dlock-rxe')


def parser():
    """The parser of the command line."""
    p = argparse.ArgumentParser(
        prog='tests/rxe/vm', usage='tests/rxe/vm [OPTIONS] [--] COMMAND [ARG...]',
        description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    a = p.add_argument_group('the run').add_argument
    a('--net', choices=['loop', 'pair', 'nodes', 'none', 'bare'], default='loop',
      help='see above')
    a('--netem', metavar='ARGS',
      help='tc netem arguments for what r0 and r1 send, as "delay 5ms loss 1%%"; COMMAND can '
           'change them: tc qdisc change dev r0 root netem ARGS')
    a('--timeout', type=float, default=300, metavar='S',
      help='seconds for everything, starting included (300)')
    a('--boot-timeout', type=float, default=120, metavar='S',
      help='seconds until COMMAND starts (120)')
    a('--stdin', action='store_true', help='pass standard input on (to node 0)')
    a('--cwd', metavar='DIR', help='working directory (the current one)')
    a('--env', action='append', default=[], metavar='N=V', help='set a variable')
    a('--rw', action='append', default=[], metavar='DIR',
      help='share DIR for writing, at the same path')
    a('--until-first', action='store_true', help='nodes: end when either COMMAND ends')
    a('--may-crash', action='append', type=int, default=[], metavar='NODE',
      help='this node may vanish without a status (echo b >/proc/sysrq-trigger)')
    a = p.add_argument_group('the virtual machine').add_argument
    a('--smp', type=int, default=2, metavar='N', help='processors (2)')
    a('--mem', type=int, default=1024, metavar='MIB', help='memory (1024)')
    a('--packages', default='', metavar='P,P',
      help='more Debian packages to lay over the root if this machine lacks them')
    a('--layer', action='append', default=[], metavar='DIR',
      help='lay the tree DIR over the root, too (at most 4 layers)')
    a('--kernel-package', metavar='P',
      help='as linux-image-6.1.0-56-amd64 (the newest at the first run, then that one)')
    a('--kernel', metavar='FILE', help='a bzImage or vmlinux instead, with --modules')
    a('--modules', metavar='DIR', help='its /lib/modules/VERSION')
    a('--append', default='', metavar='ARGS', help='more kernel parameters')
    a('--accel', default=os.environ.get('DLOCK_RXE_ACCEL', 'auto'), metavar='A',
      help='tcg, kvm, or auto: kvm if a trial run succeeds; or $DLOCK_RXE_ACCEL (auto)')
    a('--qemu', default=os.environ.get('DLOCK_RXE_QEMU'), metavar='FILE',
      help='the emulator; or $DLOCK_RXE_QEMU')
    a('--qemu-arg', action='append', default=[], metavar='ARG', help='an argument for it')
    a = p.add_argument_group('the runner').add_argument
    a('--prepare', action='store_true',
      help='only install and download what is missing; 0, or 77 with the reason')
    a('--refresh', action='store_true', help='look for a newer kernel package')
    a('--cache', default=default_cache(), metavar='DIR', help='see above')
    a('--console', action='store_true', help="the kernel's console on stderr")
    a('--keep-console', metavar='FILE', help='keep the console (nodes: FILE.0 and FILE.1)')
    a('--timing', action='store_true', help='say when which step was reached')
    a('-q', '--quiet', action='store_true', help='say nothing of warnings of the kernel')
    p.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND')
    return p


def parse(argv):
    """The options of `argv`; ends the program with status 2 if they make no sense."""
    p = parser()
    o = p.parse_args(argv)
    if o.command[:1] == ['--']:
        o.command = o.command[1:]
    if not o.command and not o.prepare:
        p.error('no COMMAND')
    if bool(o.kernel) != bool(o.modules):
        p.error('--kernel and --modules need each other')
    if o.net != 'nodes' and (o.until_first or any(o.may_crash)):
        p.error('--until-first and --may-crash 1 need --net nodes')
    missing = [d for d in o.rw + o.layer if not os.path.isdir(d)]
    if missing:
        p.error('no folder %s' % missing[0])
    o.cache = os.path.abspath(o.cache)
    o.rw = [os.path.abspath(d) for d in o.rw]
    o.layer = [os.path.abspath(d) for d in o.layer]
    o.nodes = 2 if o.net == 'nodes' else 1
    return o
