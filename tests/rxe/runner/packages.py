# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the machine lacks: programs to install, packages to unpack in the cache."""
import fcntl
import glob
import hashlib
import os
import re
import shutil
import subprocess

from . import Skip, log

# What COMMAND and network.sh need in the guest.
GUEST_PACKAGES = ['iproute2', 'libibverbs1', 'ibverbs-providers', 'librdmacm1', 'perftest']
# The same without apt: program or library -> what to install.
GUEST_FILES = {'ip': 'iproute', 'tc': 'iproute-tc', 'rdma': 'iproute'}
QEMU_NAMES = ['qemu-system-x86_64', 'qemu-kvm', '/usr/libexec/qemu-kvm']
APT_SECONDS_MAX = 600


class CacheLock:
    """One runner at a time fills the cache."""

    def __init__(self, cache):
        os.makedirs(cache, exist_ok=True)
        self.path = os.path.join(cache, 'lock')

    def __enter__(self):
        self.file = open(self.path, 'w')
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.file.close()


def which(name):
    """Like shutil.which, with the folders of administrators."""
    path = os.environ.get('PATH', '') + ':/usr/local/sbin:/usr/sbin:/sbin'
    return shutil.which(name, path=path)


def have_apt():
    """Is this a Debian or one of its children?"""
    return bool(shutil.which('apt-get') and shutil.which('dpkg'))


def output(*argv, env=None):
    """What a command prints; CalledProcessError if it fails."""
    done = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=APT_SECONDS_MAX,
                          env=dict(os.environ, LC_ALL='C', **(env or {})))
    return done.stdout


def reason(error):
    """The last line a failed command wrote, or the error itself."""
    lines = (getattr(error, 'stderr', None) or '').strip().splitlines()
    return lines[-1] if lines else str(error)


# ------------------------------------------------------------------------------------------ apt

def root_prefix():
    """The words before a command that needs root; None if that is not permitted."""
    if os.environ.get('DLOCK_SETUP') == 'no':
        return None
    if os.getuid() == 0:
        return []
    if shutil.which('sudo') and subprocess.run(
            ['sudo', '-n', 'true'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL).returncode == 0:
        return ['sudo', '-n']
    return None


def apt_update():
    """Fresh package lists, at most once per run; False if that is not possible."""
    prefix = root_prefix()
    if prefix is None or apt_update.done:
        return False
    apt_update.done = True
    log('apt-get update')
    try:
        output(*prefix, 'apt-get', 'update', '-qq')
    except (OSError, subprocess.SubprocessError) as e:
        log('apt-get update: ' + reason(e))
    return True


apt_update.done = False


def with_fresh_lists(action):
    """`action()`; if it fails, once more after an update of the package lists."""
    try:
        return action()
    except (OSError, subprocess.SubprocessError) as e:
        if not apt_update():
            raise e
    return action()


def install(packages):
    """Installs packages, or raises Skip."""
    prefix = root_prefix()
    text = ' '.join(packages)
    if prefix is None:
        raise Skip('%s is missing (apt-get install %s)' % (text, text))
    log('installing ' + text)
    apt = prefix + ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', 'install', '-y', '-qq',
                    '-o', 'DPkg::Lock::Timeout=120', '--no-install-recommends']
    try:
        with_fresh_lists(lambda: output(*apt, *packages))
    except (OSError, subprocess.SubprocessError) as e:
        raise Skip('apt cannot install %s: %s' % (text, reason(e)))


def download(packages, target, merged):
    """Downloads packages and unpacks them into the new folder `target`, all or nothing."""
    log('downloading %s into %s' % (' '.join(packages), target))
    scratch = '%s.new%d' % (target, os.getpid())
    debs, tree = scratch + '/debs', scratch + '/tree'
    os.makedirs(debs)
    os.makedirs(tree)
    apt = ['apt-get', 'download', '-qq'] + \
        (['-o', 'APT::Sandbox::User=root'] if os.getuid() == 0 else [])
    try:
        with_fresh_lists(lambda: subprocess.run(
            apt + packages, cwd=debs, check=True, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=APT_SECONDS_MAX))
        for deb in sorted(os.listdir(debs)):
            output('dpkg', '-x', os.path.join(debs, deb), tree)
        if merged:
            merge_usr(tree)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(tree, target)
    except (OSError, subprocess.SubprocessError) as e:
        raise Skip('cannot download %s: %s' % (' '.join(packages), reason(e)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def merge_usr(tree):
    """Moves bin, lib, ... below usr, where this machine's /bin, /lib, ... point to."""
    for name in ('bin', 'sbin', 'lib', 'lib64'):
        source = os.path.join(tree, name)
        if os.path.isdir(source) and not os.path.islink(source):
            shutil.copytree(source, os.path.join(tree, 'usr', name), symlinks=True,
                            dirs_exist_ok=True)
            shutil.rmtree(source)


# ------------------------------------------------------------------------------- what is needed

def qemu(given):
    """The path of the emulator; installed if it is missing."""
    if given:
        found = which(given)
        if not found:
            raise Skip('there is no %s' % given)
        return found
    for _ in range(2):
        for name in QEMU_NAMES:
            if which(name):
                return which(name)
        if not have_apt():
            break
        install(['qemu-system-x86'])
    raise Skip('qemu-system-x86_64 is missing; install qemu')


def qemu_version(path):
    """As (7, 2)."""
    try:
        found = re.search(r'version (\d+)\.(\d+)', output(path, '--version'))
    except (OSError, subprocess.SubprocessError) as e:
        raise Skip('%s does not run: %s' % (path, reason(e)))
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def is_static(path):
    """Is this an executable without a dynamic loader?"""
    try:
        with open(path, 'rb') as f:
            head = f.read(4096)
    except OSError:
        return False
    return head[:4] == b'\x7fELF' and b'ld-linux' not in head and b'ld-musl' not in head


def busybox(cache):
    """A statically linked busybox: this machine's, or one in the cache."""
    for path in ('/bin/busybox', '/usr/bin/busybox', '/sbin/busybox', '/usr/sbin/busybox'):
        if is_static(path):
            return path
    tree = os.path.join(cache, 'busybox-static')
    if not os.path.isdir(tree):
        if not have_apt():
            raise Skip('a statically linked busybox is missing; install busybox')
        download(['busybox-static'], tree, True)
    return tree + '/usr/bin/busybox'


def guest_layer(cache, more):
    """The folder with the packages this machine lacks, or None if it lacks none."""
    if not have_apt():
        lacking = sorted({p for f, p in GUEST_FILES.items() if not which(f)})
        if not glob.glob('/usr/lib*/libibverbs.so.1') + glob.glob('/usr/lib/*/libibverbs.so.1'):
            lacking.append('libibverbs')
        if lacking:
            raise Skip('missing, and there is no apt to fetch it: ' + ' '.join(lacking))
        return None
    wanted = GUEST_PACKAGES + more
    try:
        installed = os.stat('/var/lib/dpkg/status').st_mtime_ns
    except OSError:
        installed = 0
    note = os.path.join(cache, 'layer-' + digest(wanted, installed))
    if os.path.exists(note):
        with open(note) as f:
            tree = f.read()
        if not tree or os.path.isdir(tree):
            return tree or None
    lacking = to_install(wanted)
    tree = os.path.join(cache, 'packages-' + digest(lacking)) if lacking else ''
    if tree and not os.path.isdir(tree):
        download(lacking, tree, os.path.islink('/bin'))
    with open(note, 'w') as f:
        f.write(tree)
    return tree or None


def to_install(packages):
    """What apt would install for these packages, as name=version; nothing if all is there."""
    simulate = ['apt-get', '-s', '-qq', '-o', 'Debug::NoLocking=1', 'install',
                '--no-install-recommends', '--no-upgrade']
    try:
        text = with_fresh_lists(lambda: output(*simulate, *packages))
    except (OSError, subprocess.SubprocessError) as e:
        raise Skip('apt cannot provide %s: %s' % (' '.join(packages), reason(e)))
    return sorted('%s=%s' % m for m in re.findall(r'^Inst (\S+) (?:\[\S+\] )?\((\S+)', text, re.M))


def digest(*parts):
    """A short name for whatever these values are."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
