# SPDX-License-Identifier: MIT OR Apache-2.0
"""A kernel image and an initramfs.

    kernel package (apt, unpacked in the cache) | this machine's kernel | --kernel, --modules
        -> image:     the uncompressed vmlinux inside the bzImage, which starts 2.5 s sooner
        -> initramfs: busybox, guest/init.sh and the modules it inserts, in the order of their
                      dependencies; three lists: stage1, stage2net, stage2
"""
import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
import zlib

from . import Skip, log, packages

# Until the root is mounted; the network; RDMA.
STAGE1 = ['virtio_pci', 'virtio_console', '9pnet_virtio', '9p', 'overlay', 'virtio_rng']
STAGE2_NET = ['veth', 'virtio_net', 'sch_netem', 'sch_ingress', 'cls_matchall', 'act_gact']
STAGE2 = ['crc32_generic', 'rdma_rxe', 'ib_uverbs', 'rdma_ucm', 'ib_umad']
# Some kernels have these built in under another name, or not at all.
OPTIONAL = {'virtio_rng', 'sch_ingress', 'cls_matchall', 'act_gact', 'crc32_generic', 'ib_umad'}
# Those of Debian and of Ubuntu that stand for the newest kernel.
META_PACKAGES = ['linux-image-amd64', 'linux-image-generic']
APPLETS = ('sh mount insmod cat sleep usleep poweroff mkdir chroot hostname mkfifo sync ln kill '
           'readlink dd').split()
FOLDERS = ('bin dev proc sys lib lib/modules job host layer0 layer1 layer2 layer3 layer4 rw new '
           'tmp').split()
INIT = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))),
                    'guest/init.sh')


def prepare(o):
    """The paths of the image and of the initramfs, made if they are not in the cache."""
    if o.kernel:
        image, modules, name = o.kernel, o.modules, stamp(o.kernel, o.modules)
        pruned = False
    else:
        image, modules, name, pruned = find(o)
    return unpacked(o.cache, image, name), initramfs(o.cache, modules, name, pruned)


def stamp(*paths):
    """Changes whenever one of the files does."""
    paths = [os.path.abspath(p) for p in paths]
    try:
        return packages.digest(paths, [os.stat(p).st_mtime_ns for p in paths])
    except OSError as e:
        raise Skip(str(e))


def find(o):
    """(image, modules, name, may be pruned) of the kernel package or of this machine's kernel."""
    if packages.have_apt():
        try:
            return fetched(o)
        except Skip as skip:
            own = None if o.kernel_package else installed()
            if not own:
                raise
            log('%s; using the kernel of this machine, %s' % (skip, own[1]))
            return own
    own = installed()
    if not own:
        raise Skip('neither apt nor an installed kernel with rdma_rxe whose image is readable; '
                   'use --kernel and --modules')
    return own


def installed():
    """A kernel of this machine that has rdma_rxe."""
    for modules in sorted(glob.glob('/lib/modules/*'), reverse=True):
        version = os.path.basename(modules)
        for image in (modules + '/vmlinuz', '/boot/vmlinuz-' + version):
            if os.access(image, os.R_OK) and 'rdma_rxe' in Modules(modules).at:
                return image, modules, stamp(image, modules), False
    return None


# ---------------------------------------------------------------------------------- the package

def fetched(o):
    """The kernel package: the one asked for, the one of the last time, or the newest."""
    pin = os.path.join(o.cache, 'kernel-package')
    # What else there is in a package has been thrown away: another choice, another folder.
    suffix = '.' + packages.digest(STAGE1, STAGE2_NET, STAGE2)[:8]
    names = [o.kernel_package] if o.kernel_package else []
    if not names and os.path.exists(pin) and not o.refresh:
        with open(pin) as f:
            names = f.read().split()
    if not names or not os.path.isdir(os.path.join(o.cache, names[0] + suffix)):
        names = [o.kernel_package] if o.kernel_package else newest()
    tree = os.path.join(o.cache, names[0] + suffix)
    if not os.path.isdir(tree):
        packages.download(names, tree, False)
    if not o.kernel_package:
        with open(pin, 'w') as f:
            f.write(' '.join(names) + '\n')
    images = glob.glob(tree + '/boot/vmlinuz-*')
    modules = glob.glob(tree + '/lib/modules/*') + glob.glob(tree + '/usr/lib/modules/*')
    if not images or not modules:
        shutil.rmtree(tree, ignore_errors=True)
        raise Skip('%s holds no kernel' % names[0])
    return images[0], modules[0], names[0] + suffix, True


def newest():
    """The packages that make up the newest kernel: the image first, then modules of their own."""
    def depends(name):
        return re.findall(r'^  Depends: (linux-(?:image|modules|modules-extra)-\d\S*)$',
                          packages.output('apt-cache', 'depends', name), re.M)

    def look():
        for meta in META_PACKAGES:
            try:
                found = depends(meta)
            except subprocess.CalledProcessError:
                continue
            for name in list(found):
                found += [n for n in depends(name) if n not in found]
            if found:
                return sorted(found, key=lambda n: not n.startswith('linux-image'))
        raise subprocess.SubprocessError('apt knows neither ' + ' nor '.join(META_PACKAGES))
    try:
        return packages.with_fresh_lists(look)
    except (OSError, subprocess.SubprocessError) as e:
        raise Skip('no kernel package: %s' % packages.reason(e))


# ------------------------------------------------------------------------------------ the image

def unpacked(cache, image, name):
    """The uncompressed image in the cache, or `image` itself if it cannot be unpacked."""
    path = os.path.join(cache, 'vmlinux-' + name)
    if not os.path.exists(path):
        data = vmlinux(image)
        if data is None:
            return image
        write(path, data)
    return path


def vmlinux(path):
    """The ELF image inside a bzImage; None if its compression is not known here."""
    with open(path, 'rb') as f:
        data = f.read()
    if data[:4] == b'\x7fELF':
        return data
    if data[0x202:0x206] != b'HdrS':
        raise Skip('%s is no Linux kernel for x86-64' % path)
    offset, length = struct.unpack_from('<II', data, 0x248)
    start = (data[0x1f1] + 1) * 512 + offset
    payload = data[start:start + length]
    try:
        if payload[:6] == b'\xfd7zXZ\0':
            return lzma.LZMADecompressor().decompress(payload)
        if payload[:2] == b'\x1f\x8b':
            return zlib.decompressobj(31).decompress(payload)
        if payload[:4] == b'\x28\xb5\x2f\xfd' and shutil.which('zstd'):
            return zstd(payload[:-4])      # the last four bytes are its unpacked size
    except (lzma.LZMAError, zlib.error, subprocess.CalledProcessError):
        pass
    return None


def zstd(data):
    """Unpacks with the program of that name."""
    if not shutil.which('zstd'):
        raise Skip('zstd is missing, which this kernel is packed with; install zstd')
    return subprocess.run(['zstd', '-dcq'], input=data, stdout=subprocess.PIPE, check=True).stdout


def write(path, data):
    """A new file, all or nothing."""
    scratch = '%s.new%d' % (path, os.getpid())
    with open(scratch, 'wb') as f:
        f.write(data)
    os.rename(scratch, path)


# -------------------------------------------------------------------------------- the initramfs

class Modules:
    """The modules below a folder."""

    def __init__(self, root):
        self.at, self.data, self.builtin = {}, {}, set()
        for folder, _, files in os.walk(root):
            for name in files:
                m = re.match(r'(.*)\.ko(\.xz|\.gz|\.zst)?$', name)
                if m:
                    self.at[m.group(1).replace('-', '_')] = os.path.join(folder, name)
        try:
            with open(os.path.join(root, 'modules.builtin')) as f:
                for line in f:
                    name = os.path.basename(line.strip())[:-len('.ko')]
                    self.builtin.add(name.replace('-', '_'))
        except OSError:
            pass

    def read(self, name):
        """The module, uncompressed."""
        path = self.at[name]
        with open(path, 'rb') as f:
            data = f.read()
        if path.endswith('.xz'):
            return lzma.decompress(data)
        if path.endswith('.gz'):
            return zlib.decompress(data, 31)
        return zstd(data) if path.endswith('.zst') else data

    def order(self, names, done):
        """These modules and those they need, in the order to insert them, without `done`."""
        out = []

        def visit(name, optional):
            if name in done or name in out or name in self.builtin:
                return
            if name not in self.at:
                if optional:
                    return
                raise Skip('the kernel has no module ' + name)
            self.data[name] = self.read(name)
            needs = re.search(rb'(?:^|\0)depends=([^\0]*)\0', self.data[name])
            for need in (needs.group(1).decode().split(',') if needs else []):
                if need:
                    visit(need.replace('-', '_'), False)
            out.append(name)

        for name in names:
            visit(name, name in OPTIONAL)
        return out


def initramfs(cache, root, name, prune):
    """The path of the initramfs for this kernel, busybox and guest/init.sh."""
    shell = packages.busybox(cache)
    with open(INIT, 'rb') as f:
        init = f.read()
    key = packages.digest(name, init, stamp(shell), STAGE1, STAGE2_NET, STAGE2, APPLETS, FOLDERS)
    path = os.path.join(cache, 'initramfs-%s.cpio' % key)
    if os.path.exists(path):
        return path
    modules = Modules(root)
    stage1 = modules.order(STAGE1, [])
    stage2net = modules.order(STAGE2_NET, stage1)
    stage2 = modules.order(STAGE2, stage1 + stage2net)
    with open(shell, 'rb') as f:
        entries = [(n, 0o040755, b'') for n in FOLDERS] + [('bin/busybox', 0o100755, f.read())]
    entries += [('bin/' + a, 0o120777, b'busybox') for a in APPLETS]
    for stage, names in (('stage1', stage1), ('stage2net', stage2net), ('stage2', stage2)):
        text = ''.join(n + '\n' for n in names).encode()
        entries.append(('lib/modules/' + stage, 0o100644, text))
        entries += [('lib/modules/%s.ko' % n, 0o100644, modules.data[n]) for n in names]
    write(path, cpio(entries + [('init', 0o100755, init)]))
    if prune:                              # of 400 MB, 5 are used
        for module, file in modules.at.items():
            if module not in modules.data:
                os.unlink(file)
    return path


def cpio(entries):
    """An archive (newc) of (name, mode, data)."""
    out = bytearray()
    for inode, (name, mode, data) in enumerate(entries + [('TRAILER!!!', 0, b'')], 1):
        raw = name.encode() + b'\0'
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        for part in (b'070701' + b''.join(b'%08X' % v for v in fields) + raw, data):
            out += part
            out += b'\0' * (-len(out) % 4)
    return bytes(out)
