"""cffi modules over the native objects: ``python native/ffi_build.py`` builds them in a checkout.

``farbus.remoting._server`` is the remoting server's engine, ``farbus.scheduler._kernels``
what a round computes.  Run ``make -C native`` first.  setup.py takes ``server`` and
``kernels`` for wheels, by ``cffi_modules``.

``--kernels DIRECTORY FLAG...`` and ``--server DIRECTORY FLAG...`` build one alone, against another build
directory and into it, with these flags: ``make -C native asan`` and ``tsan`` test them with sanitizers.
"""

# ruff: noqa: T201 - a build step says what it built

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import cffi

NATIVE = Path(__file__).resolve().parent
BUILD = NATIVE / "build"
ENGINE = BUILD / "server" / "libfarbus_server.a"
HEADER = NATIVE / "server" / "server.h"
KERNELS = BUILD / "scheduler" / "libfarbus_scheduler.a"
KERNEL_HEADERS = tuple(NATIVE / "scheduler" / name for name in ("tables.h", "flow.h", "bound.h", "market.h"))

_SERVER = """
struct server_status;
struct server;
struct server_options {
    struct server *prepared;
    int descriptor;
    const char *libcuda;
    uint8_t *secret;
    struct server_status *status;
    const void *sessions;
    uint32_t session_count;
    uint64_t memory_limit;
    uint64_t session;
    int resume_channel;
    uint32_t grace_ms;
    const char *image_directory;
    uint64_t image_bytes;
    bool tls;
    bool rdma;
    int exchange;
};
struct server *server_prepare(const struct server_options *options);
int server_serve(const struct server_options *options, char *why, int bytes);
"""


def make_server(engine: Path, *flags: str) -> cffi.FFI:
    """Return the module over ``engine``, compiled and linked with ``flags``."""
    made = cffi.FFI()
    made.cdef(_SERVER)
    made.set_source(
        "farbus.remoting._server",
        '#include "server/server.h"',
        include_dirs=[str(NATIVE)],
        extra_objects=[str(engine)],
        depends=[str(engine), str(HEADER)],
        extra_compile_args=list(flags),
        extra_link_args=["-pthread", "-ldl", *flags],
        py_limited_api=True,
    )
    return made


server = make_server(ENGINE)


def _declarations(header: Path) -> str:
    """Return what ``header`` declares, as cffi reads it: without directives; its arrays and structs are C's own."""
    return re.sub(r"^#.*$", "", header.read_text(), flags=re.MULTILINE)


def make_kernels(library: Path, *flags: str) -> cffi.FFI:
    """Return the module over ``library``, compiled and linked with ``flags``."""
    made = cffi.FFI()
    for header in KERNEL_HEADERS:
        made.cdef(_declarations(header))
    made.set_source(
        "farbus.scheduler._kernels",
        "".join(f'#include "{header.relative_to(NATIVE)}"\n' for header in KERNEL_HEADERS),
        include_dirs=[str(NATIVE)],
        extra_objects=[str(library)],
        depends=[str(library), *map(str, KERNEL_HEADERS)],
        extra_compile_args=list(flags),
        extra_link_args=list(flags),
        py_limited_api=True,
    )
    return made


kernels = make_kernels(KERNELS)


def _is_current(module: Path, *sources: Path) -> bool:
    try:
        built = module.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return all(source.stat().st_mtime_ns < built for source in (*sources, Path(__file__)))


def put(made: cffi.FFI, package: str, name: str, *sources: Path) -> None:
    """Put a module beside its package's other files, if what it is made from is newer."""
    if not sources[0].exists():
        raise SystemExit(f"{sources[0]}: not there; run make -C {NATIVE} first")
    # The stable ABI: the same file serves every Python from 3.11 on.
    target = NATIVE.parent / "farbus" / package / f"{name}.abi3.so"
    if _is_current(target, *sources):
        return
    built = Path(made.compile(tmpdir=str(BUILD / "ffi"), verbose=False))
    target = target.with_name(built.name)
    # A running process keeps the old file: never write into it.
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(built, fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    print(f"built {target}")


def main(arguments: list[str]) -> None:
    """Build all modules, or one into another build directory."""
    if arguments:
        what, directory, *flags = arguments
        build = Path(directory).resolve()
        if what == "--kernels":
            made = make_kernels(build / "scheduler" / "libfarbus_scheduler.a", *flags)
        else:
            made = make_server(build / "server" / "libfarbus_server.a", *flags)
        made.compile(tmpdir=f"{directory}/ffi", verbose=False)
        return
    put(server, "remoting", "_server", ENGINE, HEADER)
    put(kernels, "scheduler", "_kernels", KERNELS, *KERNEL_HEADERS)


if __name__ == "__main__":
    main(sys.argv[1:])
