# SPDX-License-Identifier: MIT OR Apache-2.0
"""One qemu process.

    runner                                     guest
      n0/ctl   <- virtio port -> init.sh: boot, ready, go, exit N, end, broken REASON
      n0/out   <- virtio port -  stdout, then \\0 and the mark
      n0/err   <- virtio port -  stderr, then \\0 and the mark
      n0/in     - virtio port -> stdin, in chunks: length, bytes; 0 ends it
      n0/job   <- 9p, read-only: vars, network.sh, rxe-link, command.sh
      n0/console                 the kernel's console

qemu is started with PR_SET_PDEATHSIG: it dies with the runner, however that ends.
"""
import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

from . import Broken

GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), 'guest')
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
# Of this machine; they name files or sockets that the guest does not have, or the shell's own.
NOT_PASSED_ON = {'TMPDIR', 'XDG_RUNTIME_DIR', 'DBUS_SESSION_BUS_ADDRESS', 'SSH_AUTH_SOCK',
                 'PWD', 'OLDPWD', 'SHLVL', '_'}
COMPLAINTS = re.compile(r'(?:WARNING: CPU|BUG:|Oops|rxe\d: .*failed|blocked for more than'
                        r'|general protection).*')
CRASH = re.compile(r'BUG:|Oops|sysrq: Trigger a crash|general protection|Kernel panic')


class Kit:
    """What all machines of a run share."""

    def __init__(self, qemu, accel, image, initrd, layers):
        self.qemu, self.accel, self.image, self.initrd = qemu, accel, image, initrd
        self.layers = layers


class Machine:
    """A virtual machine, started by its creation."""

    def __init__(self, o, number, folder, kit):
        self.number = number
        self.folder = os.path.join(folder, 'n%d' % number)
        self.console = self.folder + '/console'
        self.mark = b'\0' + ('end-' + os.urandom(12).hex()).encode()
        self.times = {}
        self.listeners = {}
        os.makedirs(self.folder + '/job')
        with_input = o.stdin and number == 0
        for name in ['ctl', 'out', 'err'] + (['in'] if with_input else []):
            s = socket.socket(socket.AF_UNIX)
            s.bind(os.path.join(self.folder, name))
            s.listen(1)
            self.listeners[name] = s
        self.write_job(o, len(kit.layers), with_input)
        self.start = time.monotonic()
        with open(self.folder + '/qemu.err', 'w') as errors:
            try:
                self.process = subprocess.Popen(
                    self.arguments(o, folder, kit), stdin=subprocess.DEVNULL, stdout=errors,
                    stderr=errors, preexec_fn=die_with(os.getpid()))
            except OSError as e:
                raise Broken('cannot start %s: %s' % (kit.qemu, e))

    def write_job(self, o, layers, with_input):
        """The files that init.sh and network.sh read, and the command."""
        values = {'NODE': self.number, 'NET': o.net, 'NETEM': o.netem or '', 'LAYERS': layers,
                  'SHARES': len(o.rw), 'STDIN': int(with_input), 'MARK': self.mark[1:].decode()}
        values.update(('SHARE%d' % n, folder) for n, folder in enumerate(o.rw))
        self.write('vars', ''.join('%s=%s\n' % (k, shlex.quote(str(v)))
                                   for k, v in values.items()))
        for name in ('network.sh', 'rxe-link'):
            shutil.copy(os.path.join(GUEST, name), os.path.join(self.folder, 'job', name))
        env = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
        env.update(e.partition('=')[::2] for e in o.env)
        lines = ['cd %s || exit 125' % shlex.quote(o.cwd or os.getcwd())]
        lines += ['export %s=%s' % (k, shlex.quote(v)) for k, v in env.items()
                  if re.match(r'[A-Za-z_][A-Za-z0-9_]*$', k)]
        lines += ['PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin', 'set -a', '. /run/rxe-vm.env',
                  'RXE_VM=1 RXE_VM_NODE=%d RXE_VM_NODES=%d RXE_VM_NET=%s'
                  % (self.number, o.nodes, o.net), 'set +a',
                  # Not found gives 127, not executable 126.
                  'exec ' + ' '.join(map(shlex.quote, o.command))]
        self.write('command.sh', '\n'.join(lines) + '\n')

    def write(self, name, text):
        """A file of the job folder; names of files may be bytes that are not UTF-8."""
        with open('%s/job/%s' % (self.folder, name), 'w', errors='surrogateescape') as f:
            f.write(text)

    def arguments(self, o, folder, kit):
        """The command line of qemu."""
        kernel = ('console=ttyS0 loglevel=%d panic=-1 oops=panic reboot=t mitigations=off nokaslr '
                  'random.trust_cpu=on net.ifnames=0 tsc=reliable no_timer_check %s'
                  % (7 if o.console else 5, o.append))
        a = [kit.qemu, '-accel', kit.accel, '-cpu', 'host' if kit.accel == 'kvm' else 'max',
             '-smp', str(o.smp), '-m', str(o.mem), '-nodefaults', '-no-user-config', '-nographic',
             '-no-reboot', '-kernel', kit.image, '-initrd', kit.initrd, '-append', kernel,
             '-serial', 'file:' + self.console, '-device', 'virtio-serial-pci,max_ports=8']
        for name in self.listeners:
            a += ['-chardev', 'socket,id=%s,path=%s/%s' % (name, self.folder, name),
                  '-device', 'virtserialport,chardev=%s,name=%s' % (name, name)]
        a += plan9('job', self.folder + '/job', True) + plan9('host', '/', True)
        for n, path in enumerate(kit.layers):
            a += plan9('layer%d' % n, path, True)
        for n, path in enumerate(o.rw):
            a += plan9('share%d' % n, path, False)
        if o.nodes == 2:
            # Two datagram sockets are the cable: no port numbers, no order of starting.
            cable = 'dgram,id=cable,local.type=unix,local.path=%s/cable%d,' \
                    'remote.type=unix,remote.path=%s/cable%d'
            a += ['-netdev', cable % (folder, self.number, folder, 1 - self.number), '-device',
                  'virtio-net-pci,netdev=cable,romfile=,mac=02:77:00:00:00:0%d'
                  % (self.number + 1)]
        return a + o.qemu_arg

    def reached(self, step):
        """Notes when."""
        self.times.setdefault(step, time.monotonic() - self.start)

    def running(self):
        """Has qemu not ended?"""
        return self.process.poll() is None

    def kill(self):
        """Ends qemu, whatever it is doing."""
        if self.running():
            self.process.kill()
        self.process.wait()

    def last_words(self):
        """The end of the console, from the crash on if there is one; what qemu said itself."""
        said = read_text(self.folder + '/qemu.err').strip().splitlines()[-5:]
        console = re.sub(r'\x1b\[[0-9;?]*[A-Za-z]|\x1bc', '', read_text(self.console)).splitlines()
        crash = next((n for n, line in enumerate(console) if CRASH.search(line)), None)
        shown = console[-25:] if crash is None else console[crash:][:70]
        return '\n'.join('    ' + line for line in said + shown)

    def complaint(self):
        """The first thing the kernel complained about, or None."""
        found = COMPLAINTS.search(read_text(self.console))
        return found.group(0)[:160] if found else None


def plan9(tag, path, readonly):
    """The arguments that share a folder."""
    share = 'local,id=%s,path=%s,security_model=none,multidevs=remap%s' \
        % (tag, path.replace(',', ',,'), ',readonly=on' if readonly else '')
    return ['-fsdev', share, '-device', 'virtio-9p-pci,fsdev=%s,mount_tag=%s' % (tag, tag)]


def read_text(path):
    """A file that may not exist, of bytes that may be anything."""
    try:
        with open(path, 'rb') as f:
            return f.read().decode('utf-8', 'replace')
    except OSError:
        return ''


def die_with(parent):
    """To be run between fork and exec: a session of its own, that ends with `parent`."""
    def prepare():
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:         # it ended before the line above
            os._exit(1)
    return prepare
