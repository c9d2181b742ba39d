"""A boot: QEMU's emulator, Debian's kernel, and this machine's root file system, read-only."""

import lzma
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from integration.node.commands import NodeError, run
from integration.node.packages import BUSYBOX, Bundle, Unpacked, dependencies, ensure_installed, ensure_unpacked
from integration.vm.archive import Archive

_MEMORY_MIB = 3072
_DISK_BYTES = 4 << 30
_SWAP_BYTES = 256 << 20
_TABLE_SECONDS = 600
"""Timeout of depmod, which reads some thousand modules."""

KERNELS = {"bookworm": 2, "trixie": 1}
"""Releases of Debian with a kernel for the machine, and the number of processors for it.

Linux 6.1 of bookworm lacks what user namespaces need. Linux 6.12 of trixie has it, but on two emulated processors ended
with an oops: one ran into the breakpoint that the other had set to patch code, and had removed since.
"""

_QEMU = Bundle(
    name="qemu",
    suites=("bookworm",),
    packages=(
        "qemu-system-x86",
        "qemu-system-common",
        "qemu-system-data",
        "seabios",
        "ipxe-qemu",
        *("libaio1", "libbrlapi0.8", "libcacard0", "libcapstone4", "libdaxctl1", "libepoxy0", "libexecs0", "libfdt1"),
        *("libfuse3-3", "libibverbs1", "libndctl6", "libnl-3-200", "libnl-route-3-200", "liborc-0.4-0", "libopus0"),
        *("libgstreamer-plugins-base1.0-0", "libpmem1", "librdmacm1", "libslirp0", "libsndio7.0", "libspice-server1"),
        *("liburing2", "libusb-1.0-0", "libusbredirparser1", "libvdeplug2"),
    ),
)
_MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"),
    *("netfs", "fscache", "9pnet", "9pnet_virtio", "9p", "overlay"),
    *("crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4", "loop"),
)
"""Kernel modules in the order of their dependencies."""

_PARAMETERS = (
    "console=ttyS0 quiet systemd.show_status=0 panic=-1 psi=1"
    # Without this the kernel distrusts the emulated counter, and reads each time from the emulated HPET, which is slow.
    " tsc=reliable"
    " mitigations=off"
)
"""Parameters of the kernel."""

_INIT = """\
#!/bin/sh
B=/bin/busybox
$B mkdir -p /proc /sys /lower /changes /new
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in {modules}; do $B insmod /modules/$module.ko; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose root /lower
$B mount -t tmpfs -o mode=755,size=1g tmpfs /changes
$B mkdir /changes/upper /changes/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/changes/upper,workdir=/changes/work overlay /new
$B mkdir -p /new/disk /new/lib/modules
$B mount -t tmpfs -o mode=755 tmpfs /new/run
$B mount -t proc proc /new/proc
$B mount -t sysfs sys /new/sys
$B mount -t devtmpfs dev /new/dev
$B mkdir -p /new/dev/pts /new/dev/shm /new/run/vm
$B mount -t devpts devpts /new/dev/pts
$B mount -t tmpfs shm /new/dev/shm
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /new/run/vm
$B mount --bind /new{kernel}/lib/modules /new/lib/modules
$B ln -sf {busybox} /new/sbin/modprobe
$B chroot /new /sbin/mke2fs -F -q -t ext4 /dev/vda
$B chroot /new /bin/mount /dev/vda /disk
$B chroot /new /sbin/mkswap /dev/vdb >/dev/null
$B chroot /new /sbin/swapon /dev/vdb
$B umount /proc
$B umount /sys
exec $B switch_root /new {first}
"""

_WORK = """\
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb PYDOCKERSHIM_SLOWNESS=10
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # Docker reads in its own group what there is, and the one at the root lacks most files.
    mkdir /sys/fs/cgroup/init
    echo $$ >/sys/fs/cgroup/init/cgroup.procs
    sed 's/\\</+/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi
ip link set lo up
ulimit -n 65536
mkdir /disk/share && mount --bind /run/vm /disk/share
mkdir -p -m 1777 /disk/tmp && mount --bind /disk/tmp /var/tmp && export TMPDIR=/disk/tmp
cd {directory}
{command} </dev/null >/dev/console 2>&1
echo $? >/run/vm/status
sync
echo o >/proc/sysrq-trigger
sleep 60
"""

_UNIT = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh /run/vm/work
"""

_BEGIN_SYSTEMD = """\
mkdir -p /run/systemd/system
cp /run/vm/unit /run/systemd/system/vm.service
exec /lib/systemd/systemd --unit=vm.service
"""


def run_in_vm(
    command: Sequence[str], *, scratch: Path, share: Path, kernel_of: str, systemd: bool, seconds: float
) -> int:
    """Run a command with its output on ours, and return its exit status; raise NodeError if it does not end in time.

    `kernel_of` is the release of Debian that the kernel is from.
    """
    ensure_installed(("apparmor",))  # Docker runs its parser; the emulated machine has this machine's files
    qemu, kernel, busybox = ensure_unpacked(_QEMU), ensure_unpacked(_kernel(kernel_of)), ensure_unpacked(BUSYBOX)
    program = busybox.root / "bin/busybox"
    ensure_module_table(kernel, busybox=program)
    (share / "work").write_text(_WORK.format(directory=shlex.quote(str(Path.cwd())), command=shlex.join(command)))
    (share / "unit").write_text(_UNIT)
    (share / "begin").write_text(_BEGIN_SYSTEMD)
    (share / "status").unlink(missing_ok=True)
    first = "/bin/sh /run/vm/begin" if systemd else "/bin/sh /run/vm/work"
    _write_initramfs(scratch / "initramfs", kernel=kernel, busybox=program, first=first)
    for name, size in (("disk", _DISK_BYTES), ("swap", _SWAP_BYTES)):
        with (scratch / name).open("wb") as file:
            file.truncate(size)
    libraries = ":".join(str(qemu.root / place) for place in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
    try:
        subprocess.run(
            _arguments(qemu, kernel, processors=KERNELS[kernel_of], scratch=scratch, share=share),
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        return int((share / "status").read_text())
    except subprocess.TimeoutExpired as cause:
        raise NodeError(f"no end within {seconds:g} s") from cause
    except (subprocess.CalledProcessError, FileNotFoundError, ValueError) as cause:
        raise NodeError(f"the machine stopped before the command ended: {cause}") from cause


def _kernel(suite: str) -> Bundle:
    """Return the package behind `linux-image-amd64`, which changes with every release."""
    # With the package lists of the bundles: the machine's own lists may know a newer package.
    for name in dependencies("linux-image-amd64", suite=suite):
        if name.startswith("linux-image-"):
            return Bundle(name=f"linux-{suite}", suites=(suite,), packages=(name,))
    raise NodeError(f"find a kernel: {suite} has no linux-image-amd64")


def ensure_module_table(kernel: Unpacked, *, busybox: Path) -> None:
    """Write modprobe's tables, as the package's installation script does, after unpacking compressed modules."""
    if not (kernel.root / "lib").exists():  # Debian has moved it since 13
        (kernel.root / "lib").symlink_to("usr/lib")
    (modules,) = (kernel.root / "lib/modules").iterdir()
    made = modules / "tables-are-whole"
    if not made.exists():  # the tables themselves exist early in a run, which may have been interrupted
        for packed in modules.rglob("*.ko.xz"):
            packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
            packed.unlink()
        run([busybox, "depmod", "-b", kernel.root, modules.name], timeout=_TABLE_SECONDS)
        made.touch()


def _write_initramfs(path: Path, *, kernel: Unpacked, busybox: Path, first: str) -> None:
    found = {file.stem: file for file in kernel.root.glob("lib/modules/*/kernel/**/*.ko")}
    modules = [name for name in _MODULES if name in found]
    init = _INIT.format(modules=" ".join(modules), kernel=kernel.root, busybox=busybox, first=first)
    with path.open("wb") as file:
        archive = Archive(file)
        for directory in ("bin", "dev", "modules"):
            archive.add_directory(directory)
        archive.add_device("dev/console", major=5, minor=1)
        archive.add_file("bin/busybox", busybox.read_bytes())
        archive.add_link("bin/sh", "busybox")
        for name in modules:
            archive.add_file(f"modules/{name}.ko", found[name].read_bytes())
        archive.add_file("init", init.encode())
        archive.end()


def _arguments(qemu: Unpacked, kernel: Unpacked, *, processors: int, scratch: Path, share: Path) -> list[str]:
    (image,) = (kernel.root / "boot").glob("vmlinuz-*")
    data = [word for part in ("qemu", "seabios") for word in ("-L", str(qemu.root / "usr/share" / part))]
    # An emulated CPU: this machine may be virtual itself, without nested virtualization. A fifth level of page tables
    # would only slow the emulation of memory down.
    cpu = ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", str(processors)]
    shape = [*cpu, "-m", str(_MEMORY_MIB), "-net", "none"]
    boot = ["-kernel", str(image), "-initrd", str(scratch / "initramfs")]
    shares = [
        word
        for tag, path, options in (("root", "/", ",readonly=on,multidevs=remap"), ("share", share, ""))
        for word in (
            *("-fsdev", f"local,id={tag},path={path},security_model=none{options}"),
            *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        )
    ]
    drives = [
        word
        for name in ("disk", "swap")
        for word in ("-drive", f"file={scratch / name},if=virtio,format=raw,cache=unsafe")
    ]
    parameters = ["-nographic", "-no-reboot", "-append", _PARAMETERS]
    return [str(qemu.root / "usr/bin/qemu-system-x86_64"), *data, *shape, *boot, *shares, *drives, *parameters]
