"""Programs of arm64 on this machine, which is not: ``python -m tests.harness.arm64`` (make check-arm64).

The native parts are built by a cross-compiler into ``native/build/arm64``; programs run in QEMU's emulation of a
processor, which the kernel starts for them (binfmt_misc).  They use the software GPU of arm64, and through the shim of
arm64 that of this machine, whose server is this one's: two machines of different kinds in one session.

What an emulator on x86 can't show is the order in which an arm64 processor makes accesses visible to others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lab.image import LabError, install_missing

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "native" / "build" / "arm64"
COMPILER = "aarch64-linux-gnu-gcc"
PREFIX = Path("/usr/aarch64-linux-gnu")
"""Where Debian's cross packages have the C library, which the emulator is told."""
EMULATOR = "qemu-aarch64-static"

COMMANDS = {
    COMPILER: "gcc-aarch64-linux-gnu",
    f"{PREFIX}/lib/ld-linux-aarch64.so.1": "libc6-dev-arm64-cross",
    EMULATOR: "qemu-user-static",
}
"""What is needed, and the package of Debian and Ubuntu that brings it."""

FORMATS = Path("/proc/sys/fs/binfmt_misc")
HEADER = b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = b"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
"""ELF of 64 bits, little-endian, EM_AARCH64 (183), an executable or position-independent (elf.h)."""

LEFT_OUT = ("tls_test.c", "transport_test.c")
"""Tests in C that want a libssl of arm64, or count their threads, of which the emulator has some of its own."""


def _escaped(raw: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in raw)


@contextlib.contextmanager
def started_by_the_kernel() -> Iterator[None]:
    """Have the kernel start arm64 programs in the emulator (its admin-guide/binfmt-misc.rst), until the end."""
    emulator = shutil.which(EMULATOR)
    if _runs():
        yield
        return
    if not (FORMATS / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", FORMATS], check=True)
    name = f"farbus-arm64-{os.getpid()}"
    rule = b":%s:M::%s:%s:%s:OF" % (name.encode(), _escaped(HEADER), _escaped(MASK), str(emulator).encode())
    (FORMATS / "register").write_bytes(rule)
    try:
        yield
    finally:
        (FORMATS / name).write_text("-1")


def _runs() -> bool:
    """Does a program of arm64 run here already?"""
    program = BUILD / "probe"
    source = b"int main(void) { return 42; }"
    subprocess.run([COMPILER, "-x", "c", "-", "-o", program], input=source, check=True)
    try:
        return subprocess.run([program], env=environment(), check=False).returncode == 42
    except OSError:
        return False


def environment() -> dict[str, str]:
    """What programs, and the tests that compile and start them, are told."""
    return {
        **os.environ,
        "CC": COMPILER,
        "QEMU_LD_PREFIX": str(PREFIX),
        "FARBUS_SOFTGPU_LIBRARIES": str(BUILD / "softgpu"),
        "FARBUS_TEST_SHIM": str(BUILD / "shim"),
    }


def main() -> int:
    """Build, and run all tests; the exit status of the first of their runs that fails."""
    try:
        install_missing(COMMANDS, for_what="arm64")
    except LabError as error:
        print(f"farbus: {error}", file=sys.stderr)
        return 1
    make = ["make", "-s", "-C", str(ROOT / "native"), f"-j{os.cpu_count()}", f"BUILD={BUILD}", f"CC={COMPILER}"]
    print("arm64: building", file=sys.stderr)
    if status := subprocess.run([*make, "all"], check=False).returncode:
        return status
    names = sorted(path.name for path in (ROOT / "native" / "tests").glob("*_test.c"))
    sources = [f"tests/{name}" for name in names if name not in LEFT_OUT]
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "auto", "--timeout", "600"]
    runs = (
        [*make, "check", f"TEST_SOURCES={' '.join(sources)}"],
        [*tests, "tests/softgpu/test_driver_programs.py"],
        [*tests, "tests/remoting/test_coverage.py"],
    )
    with started_by_the_kernel():
        ended = [subprocess.run(run, cwd=ROOT, env=environment(), check=False).returncode for run in runs]
    return next(filter(None, ended), 0)


if __name__ == "__main__":
    sys.exit(main())
