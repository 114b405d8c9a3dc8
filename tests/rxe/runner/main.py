# SPDX-License-Identifier: MIT OR Apache-2.0
"""From the command line to the exit status."""
import argparse
import fcntl
import glob
import os
import platform
import shutil
import signal
import sys
import tempfile

from . import (STATUS_BROKEN, STATUS_SKIP, Broken, Skip, kernel, log, options, packages)
from .machine import Kit, Machine
from .session import Session

# Sockets have short names: not in a deep TMPDIR.
FOLDERS = '/tmp/dlock-rxe.'
QEMU_FOR_NODES = (7, 2)
KVM_TRIAL_S = 12


class Interrupted(Exception):
    """A signal that ends the runner."""


def main():
    """Runs, and ends the process with the status."""
    for fd in (0, 1, 2):                   # so that no socket becomes stdin
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    o = options.parse(sys.argv[1:])
    code = None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupt)
    folder = None
    try:
        if sys.platform != 'linux' or platform.machine() != 'x86_64':
            raise Skip('the virtual machine is an x86-64 one, this is ' + platform.machine())
        folder, alive = make_folder()
        code = run(o, folder)
        del alive
    except Skip as e:
        if os.environ.get('DLOCK_RXE_REQUIRED') == '1':
            log('required (DLOCK_RXE_REQUIRED=1), but: %s' % e)
            code = STATUS_BROKEN
        else:
            log('SKIP: %s' % e)
            code = STATUS_SKIP
    except Broken as e:
        log(e)
        code = STATUS_BROKEN
    except Interrupted as e:
        code = 128 + e.args[0]
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


def interrupt(number, _frame):
    """Ends the run once; a second signal does not disturb the cleaning up."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def make_folder():
    """A folder for this run and the lock that says that it is in use; removes those of runs
    that were ended by SIGKILL."""
    folder = tempfile.mkdtemp(prefix=os.path.basename(FOLDERS), dir=os.path.dirname(FOLDERS))
    alive = open(folder + '/alive.new', 'w')
    fcntl.flock(alive, fcntl.LOCK_EX)
    os.rename(folder + '/alive.new', folder + '/alive')
    for other in glob.glob(FOLDERS + '*'):
        try:
            with open(other + '/alive') as f:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
        except OSError:
            pass
    return folder, alive


def run(o, folder):
    """Prepares what is needed, starts the machines, serves them, ends them."""
    kit = prepare(o, folder)
    if o.prepare:
        log('ready: %s, %s, %s' % (kit.image, kit.qemu, kit.accel))
        return 0
    return serve(o, folder, kit)


def prepare(o, folder):
    """Installs and downloads what is missing."""
    qemu = packages.qemu(o.qemu)
    if o.nodes == 2 and packages.qemu_version(qemu) < QEMU_FOR_NODES:
        raise Skip('--net nodes needs qemu %d.%d' % QEMU_FOR_NODES)
    try:
        with packages.CacheLock(o.cache):
            image, initrd = kernel.prepare(o)
            layer = packages.guest_layer(o.cache, [p for p in o.packages.split(',') if p])
            layers = ([layer] if layer else []) + o.layer
            kit = Kit(qemu, 'tcg,thread=multi' if o.accel == 'tcg' else o.accel, image, initrd,
                      layers)
            if o.accel == 'auto':
                kit.accel = 'kvm' if kvm_works(o, folder, kit) else 'tcg,thread=multi'
    except OSError as e:
        raise Skip('the cache %s cannot be used: %s' % (o.cache, e))
    return kit


def kvm_works(o, folder, kit):
    """Does a machine start under KVM? /dev/kvm alone says little. Asked once per boot."""
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        return False
    with open('/proc/sys/kernel/random/boot_id') as f:
        key = packages.digest(f.read(), kernel.stamp(kit.qemu), kit.image, kit.initrd)
    note = os.path.join(o.cache, 'kvm-' + key)
    if not os.path.exists(note):
        trial = argparse.Namespace(**vars(o))
        vars(trial).update(net='bare', nodes=1, netem=None, command=['true'], cwd='/', stdin=False,
                           console=False, rw=[], may_crash=[], until_first=False, qemu_arg=[],
                           append='', timeout=KVM_TRIAL_S, boot_timeout=KVM_TRIAL_S, timing=False,
                           keep_console=None, quiet=True)
        trial_folder = folder + '/kvm'
        os.mkdir(trial_folder)
        log('trying whether KVM works here')
        try:
            works = serve(trial, trial_folder, Kit(kit.qemu, 'kvm', kit.image, kit.initrd,
                                                   kit.layers)) == 0
        except Broken:
            works = False
        log('KVM works' if works else 'KVM does not work; qemu emulates')
        kernel.write(note, b'yes' if works else b'no')
    with open(note) as f:
        return f.read() == 'yes'


def serve(o, folder, kit):
    """Starts the machines; the exit status."""
    machines = []
    try:
        for number in range(o.nodes):
            machines.append(Machine(o, number, folder, kit))
        return Session(o, machines).run()
    finally:
        for machine in machines:
            machine.kill()
            machine.reached('ended')
        for machine in machines:
            epilogue(o, machine)


def epilogue(o, machine):
    """What was asked for to be kept or said about a machine."""
    name = 'node %d: ' % machine.number if o.nodes == 2 else ''
    if o.keep_console and os.path.exists(machine.console):
        shutil.copy(machine.console,
                    o.keep_console + ('.%d' % machine.number if o.nodes == 2 else ''))
    if o.timing:
        log(name + ', '.join('%s %.1f s' % step for step in machine.times.items()))
    complaint = None if o.quiet else machine.complaint()
    if complaint:
        log('%sthe kernel of the virtual machine complained: %s' % (name, complaint))
