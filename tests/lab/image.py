"""The image that guests of the lab boot: Debian with systemd, a kernel, and Farbus's dependencies.

``python -m tests.lab.image`` makes it (about two minutes) where it is not there yet and prints its directory:
``$XDG_CACHE_HOME/farbus/lab/KEY``, where KEY changes with this recipe and with
the dependencies in pyproject.toml.  In it are

* ``root.ext4``: a Debian of mmdebstrap's ``minbase`` with what the tests need, users ``alice`` and ``bob``, the
  server of :mod:`tests.lab.control`, and ``/opt/farbus``, a virtual environment with the dependencies of Farbus
  and without Farbus itself;
* ``/opt/trixie/bin/nvme`` in it: nvme-cli 2.13 with the libraries of the next Debian, beside the 2.3 of this one;
  and ``tlshd`` (ktls-utils), which this Debian does not have;
* Docker of the next Debian, which knows CDI, as the services ``docker`` and ``containerd`` that are not enabled;
* ``vmlinuz-SERIES`` and ``initrd-SERIES`` for each series of :data:`KERNELS`: Debian's own kernels, and the few
  modules that find the root.  Both kernels' modules are in the root.

Nobody has to be root: mmdebstrap uses user namespaces where it is not, and
fakeroot remembers the owners of files between its archive and the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent

SUITE = "bookworm"
PYTHON = "3.11"
"""Python of that Debian: wheels are chosen for it, whatever Python the tests run on."""

KERNELS = ("6.1", "6.12")
"""Series of Linux that a guest can boot: this Debian's, and the next one's, which has NVMe authentication and TLS."""

NEXT_SUITE = "trixie"
"""Where the newer kernel and nvme-cli come from; they are unpacked, never installed."""

ADDRESSES = {name: f"10.9.0.{number}" for number, name in enumerate("abcdefgh", start=1)}
"""Nodes of a lab: each finds the others by name."""

NEXT_TOOLS = (
    *("nvme-cli", "libnvme1t64", "libjson-c5", "libkeyutils1", "libssl3t64", "libc6", "libzstd1", "zlib1g"),
    *("ktls-utils", "libglib2.0-0t64", "libnl-3-200", "libnl-genl-3-200", "libgnutls30t64", "libatomic1", "libffi8"),
    *("libgmp10", "libhogweed6t64", "libidn2-0", "libnettle8t64", "libp11-kit0", "libpcre2-8-0", "libtasn1-6"),
    "libunistring5",
)
"""nvme-cli and tlshd of the next Debian with all that they are linked to."""

NEXT_DOCKER = ("docker.io", "docker-cli", "containerd", "tini")
"""Docker of the next Debian; the C library of this one is new enough for it."""

PACKAGES = (
    # The system itself.
    *("systemd", "systemd-sysv", "udev", "dbus", "kmod", "iproute2", "procps", "busybox-static"),
    # Farbus: its interpreter, and what the software GPU opens.
    *("python3", "python3-venv", "libzstd1", "liblz4-1"),
    # Devices: PCI, NVMe over Fabrics, soft-RoCE, composed drives.
    *("pciutils", "nvme-cli", "mdadm", "dmsetup", "rdma-core", "ibverbs-providers", "ibverbs-utils"),
    # A peer of remoting over RDMA in Python (tests/verbs/peer.py).
    "python3-pyverbs",
    # Storage: volumes, file systems, and what writes and verifies them.
    *("lvm2", "e2fsprogs", "xfsprogs", "fio"),
    # Containers: root's and users', with networks of their own (60 MiB); what Docker starts them with.
    *("podman", "crun", "netavark", "iptables", "slirp4netns", "uidmap", "catatonit", "runc"),
)

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
"""Wheels that fit the glibc of that Debian, in pip's order."""

BOOT_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
"""What Debian's kernel has as modules and needs before there is a root (ext4 asks for its check sum by name)."""

LEFT_OUT = ("drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/staging", "drivers/iio", "sound")
"""Directories of modules for devices that no guest has: two thirds of all."""

ROOT_BYTES = 3 * 2**30
"""Size of the file system; the file is sparse."""

COMMANDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "fakeroot": "fakeroot",
    "mke2fs": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "setpriv": "util-linux",
}
"""What the lab runs on the machine of the tests, and the package of Debian and Ubuntu that brings it."""

COMPLETE = "complete"
"""Written last: it says that all is there."""

MAKING = "making."
"""How the directory of an image is called while it is made."""

IMAGES_KEPT = 2
"""Beside the one that is made: recipes of other branches."""

PUT_IN = ("control.py", "lab-control.service", "lab-network.service")
"""Of this directory: what the image contains."""

WHEELS_LIMIT_S = 600
BOOTSTRAP_LIMIT_S = 1200
FILE_SYSTEM_LIMIT_S = 300
"""Longest that the steps may take, on a slow network and a busy machine."""

# mmdebstrap runs these with the root as $1; inside is what chroot runs.
HOOKS = """
set -eu
root=$1
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
unpack_kernel() { # of the suite that apt knows best
    rm -rf kernel linux-image-*.deb
    apt-get download --quiet "$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: //p' | head -n 1)" >/dev/null
    dpkg-deb -x linux-image-*.deb kernel
    rm linux-image-*.deb
    if [ -d kernel/usr/lib/modules ]; then modules=kernel/usr/lib/modules; else modules=kernel/lib/modules; fi
    release=$(ls "$modules")
    mv kernel/boot/vmlinuz-* "$root/boot/"
    mv "$modules/$release" "$root/lib/modules/"
    rm -r kernel
    for directory in {left_out}; do rm -rf "$root/lib/modules/$release/kernel/$directory"; done
    chroot "$root" depmod "$release"
}
cd "$root/tmp"
mkdir -p "$root/lib/modules"
unpack_kernel
# The next Debian, for as long as it takes to download from it.
sed 's/{suite}/{next_suite}/' "$root/etc/apt/sources.list" > "$root/etc/apt/sources.list.d/next.list"
apt-get update -qq
unpack_kernel
apt-get download --quiet $(for tool in {next_tools}; do echo $tool/{next_suite}; done) >/dev/null
for archive in *.deb; do dpkg-deb -x "$archive" next; done
rm ./*.deb
apt-get download --quiet $(for package in {next_docker}; do echo $package/{next_suite}; done) >/dev/null
for archive in *.deb; do dpkg-deb -x "$archive" "$root"; done
rm ./*.deb "$root/etc/apt/sources.list.d/next.list"
rm "$root"/usr/bin/ctr "$root"/usr/bin/containerd-shim "$root"/usr/bin/containerd-shim-runc-v1
mkdir -p "$root/etc/docker"
echo '{"features": {"cdi": true}}' > "$root/etc/docker/daemon.json"
mkdir -p "$root/opt/{next_suite}/bin"
mv next/usr/lib/x86_64-linux-gnu "$root/opt/{next_suite}/lib"
rm -rf "$root/opt/{next_suite}/lib/gconv"
mkdir "$root/opt/{next_suite}/loader"
for tool in nvme tlshd; do
    mv next/usr/sbin/$tool "$root/opt/{next_suite}/lib/$tool"
    # Under its own name: by that a process is known.
    cp "$root/opt/{next_suite}/lib/ld-linux-x86-64.so.2" "$root/opt/{next_suite}/loader/$tool"
    cat > "$root/opt/{next_suite}/bin/$tool" <<EOF
#!/bin/sh
next=/opt/{next_suite}
exec \\$next/loader/$tool --library-path \\$next/lib --argv0 $tool \\$next/lib/$tool "\\$@"
EOF
    chmod +x "$root/opt/{next_suite}/bin/$tool"
done
cp -r next/etc/tlshd* "$root/etc/"
rm -r next
cp -r {wheels} "$root/tmp/wheels"
chroot "$root" python3 -m venv /opt/farbus
chroot "$root" /opt/farbus/bin/pip install --quiet --no-index --find-links /tmp/wheels {requirements}
rm -r "$root/tmp/wheels"
cp {here}/control.py "$root/usr/local/lib/lab-control.py"
cp {here}/lab-control.service {here}/lab-network.service "$root/etc/systemd/system/"
chroot "$root" systemctl --quiet enable lab-control.service lab-network.service
# Nobody logs in; nothing is there to be waited for.
chroot "$root" systemctl --quiet mask getty.target serial-getty@ttyS0.service systemd-networkd-wait-online.service
for unit in mdmonitor.service nvmf-autoconnect.service e2scrub_reap.service systemd-binfmt.service \\
    lvm2-monitor.service fstrim.timer e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \\
    podman.socket podman-restart.service podman-auto-update.timer; do
    chroot "$root" systemctl --quiet mask "$unit"
done
chroot "$root" groupadd --system docker
chroot "$root" useradd --create-home --shell /bin/bash --groups docker alice
chroot "$root" useradd --create-home --shell /bin/bash bob
# The journal of a guest outlives its reboot.
mkdir -p "$root/var/log/journal"
# A guest's own id and name come with its kernel's command line; an empty file would make each boot a first one.
echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
echo lab > "$root/etc/hostname"
printf '127.0.0.1 localhost\\n::1 localhost\\n{hosts}' > "$root/etc/hosts"
"""

INIT = """#!/bin/busybox sh
busybox=/bin/busybox
$busybox mount -t proc none /proc
$busybox mount -t sysfs none /sys
$busybox mount -t devtmpfs none /dev
for module in {modules}; do $busybox insmod /modules/$module; done
while ! [ -b /dev/vda ]; do $busybox usleep 10000; done
$busybox mount -t ext4 /dev/vda /root
for directory in proc sys dev; do $busybox mount --move /$directory /root/$directory; done
exec $busybox switch_root /root /sbin/init
"""


class LabError(Exception):
    """The lab can't be made or used; the message says what to do."""


def missing_commands(commands: Mapping[str, str] = COMMANDS) -> dict[str, str]:
    """Return what is missing on this machine: commands, and the packages that bring them."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return {name: package for name, package in commands.items() if shutil.which(name, path=path) is None}


def install_missing(commands: Mapping[str, str] = COMMANDS, *, for_what: str = "lab") -> None:
    """Install what is missing by apt where this is root on Debian or Ubuntu; raise :class:`LabError` elsewhere."""
    packages = sorted(set(missing_commands(commands).values()))
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LabError(f"missing for {for_what}: {', '.join(packages)}; install them, for example by apt-get install")
    print(f"{for_what}: installing {', '.join(packages)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-qq"], limit_s=BOOTSTRAP_LIMIT_S, environment=environment)
    _run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
        limit_s=BOOTSTRAP_LIMIT_S,
        environment=environment,
    )


def requirements() -> list[str]:
    """Return what Farbus depends on, from pyproject.toml."""
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def image_directory() -> Path:
    """Return where the image of this recipe is, or would be."""
    recipe = hashlib.sha256()
    for source in (Path(__file__), *(HERE / name for name in PUT_IN)):
        recipe.update(source.read_bytes())
    recipe.update("\n".join(requirements()).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "farbus" / "lab" / recipe.hexdigest()[:16]


def image_is_there() -> bool:
    """Say whether the image of this recipe has been made."""
    return (image_directory() / COMPLETE).exists()


def ensure_image() -> Path:
    """Return the directory of the image, made now where it is not there."""
    install_missing()
    directory = image_directory()
    if image_is_there():
        # Used now: _forget_old() looks at it.
        os.utime(directory / COMPLETE)
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent / "lock"):
        if image_is_there():
            return directory
        _forget_old(directory.parent)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=MAKING) as place:
            _make(Path(place))
            os.chmod(place, 0o755)
            os.rename(place, directory)
            # Its own clean-up finds an empty directory.
            os.mkdir(place)
    return directory


def _forget_old(cache: Path) -> None:
    """Remove what interrupted builds have left, and images but the last ones used; guests keep what they have open."""
    images = []
    for directory in (entry for entry in cache.iterdir() if entry.is_dir()):
        if (directory / COMPLETE).exists():
            images.append(directory)
        elif directory.name.startswith(MAKING):
            shutil.rmtree(directory)
    images.sort(key=lambda directory: (directory / COMPLETE).stat().st_mtime)
    for directory in images[:-IMAGES_KEPT]:
        shutil.rmtree(directory)


def _make(place: Path) -> None:
    """Make everything in ``place``."""
    print("lab: downloading the dependencies", file=sys.stderr)
    wheels = place / "wheels"
    _run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(wheels)),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON),
            *(f"--platform={platform}" for platform in PLATFORMS),
            *requirements(),
        ],
        limit_s=WHEELS_LIMIT_S,
    )
    print("lab: making a root of Debian", file=sys.stderr)
    hooks = place / "hooks.sh"
    hooks.write_text(
        HOOKS.replace("{left_out}", " ".join(LEFT_OUT))
        .replace("{suite}", SUITE)
        .replace("{next_suite}", NEXT_SUITE)
        .replace("{next_tools}", " ".join(NEXT_TOOLS))
        .replace("{next_docker}", " ".join(NEXT_DOCKER))
        .replace("{hosts}", "".join(f"{address} {name}\\n" for name, address in ADDRESSES.items()))
        .replace("{wheels}", shlex.quote(str(wheels)))
        .replace("{requirements}", shlex.join(requirements()))
        .replace("{here}", shlex.quote(str(HERE)))
    )
    archive = place / "root.tar"
    _run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
            f"--customize-hook=sh {shlex.quote(str(hooks))} \"$1\"",
            *(SUITE, str(archive)),
        ],
        limit_s=BOOTSTRAP_LIMIT_S,
    )  # fmt: skip
    print("lab: making its file system", file=sys.stderr)
    root = place / "root"
    root.mkdir()
    image = place / "root.ext4"
    with image.open("wb") as file:
        file.truncate(ROOT_BYTES)
    script = (
        f"tar -xf {shlex.quote(str(archive))} -C {shlex.quote(str(root))} --exclude=./dev/*"
        f" && mke2fs -q -F -t ext4 -E lazy_itable_init=0 -d {shlex.quote(str(root))} {shlex.quote(str(image))}"
    )
    _run(["fakeroot", "sh", "-c", script], limit_s=FILE_SYSTEM_LIMIT_S)
    for series in KERNELS:
        (kernel,) = (root / "boot").glob(f"vmlinuz-{series}.*")
        shutil.copyfile(kernel, place / f"vmlinuz-{series}")
        (modules,) = (root / "lib/modules").glob(f"{series}.*")
        _write_initrd(root, modules, place / f"initrd-{series}")
    shutil.rmtree(root)
    shutil.rmtree(wheels)
    archive.unlink()
    hooks.unlink()
    (place / COMPLETE).touch()


def _write_initrd(root: Path, modules: Path, target: Path) -> None:
    """Pack busybox, the modules that find the root, and an init that mounts it."""
    dependencies = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        name, _, needed = line.partition(":")
        dependencies[name] = needed.split()
    order: list[str] = []
    builtin = {Path(line).stem for line in (modules / "modules.builtin").read_text().splitlines()}
    for wanted in BOOT_MODULES:
        if wanted in builtin:
            continue
        (file,) = (name for name in dependencies if Path(name).name in (f"{wanted}.ko", f"{wanted}.ko.xz"))
        # modules.dep lists what a module needs so that the last has to be loaded first.
        order += [name for name in [*reversed(dependencies[file]), file] if name not in order]
    archive = _Cpio()
    for directory in ("bin", "proc", "sys", "dev", "root", "modules"):
        archive.add(directory, b"", 0o40755)
    archive.add("bin/busybox", (root / "bin/busybox").read_bytes(), 0o100755)
    for name in order:
        content = (modules / name).read_bytes()
        archive.add(
            f"modules/{Path(name).stem}", lzma.decompress(content) if name.endswith(".xz") else content, 0o100644
        )
    archive.add("init", INIT.replace("{modules}", " ".join(Path(name).stem for name in order)).encode(), 0o100755)
    target.write_bytes(archive.end())


class _Cpio:
    """An archive in the format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._inode = 0

    def add(self, name: str, content: bytes, mode: int) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device and rdevice, length of the name, no check sum
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        self._data += b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        self._pad()
        self._data += content
        self._pad()

    def _pad(self) -> None:
        self._data += bytes(-len(self._data) % 4)

    def end(self) -> bytes:
        self.add("TRAILER!!!", b"", 0)
        return bytes(self._data)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make the image."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], *, limit_s: float, environment: dict[str, str] | None = None) -> None:
    environment = dict(environment or os.environ)
    # mke2fs is where ordinary users' PATH of Debian does not lead.
    environment["PATH"] = os.pathsep.join((environment.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise LabError(
            f"{shlex.join(command)[:200]} ends with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )


if __name__ == "__main__":
    try:
        print(ensure_image())
    except LabError as error:
        sys.exit(f"lab: {error}")
