"""cffi modules over the native objects: ``python native/ffi_build.py`` builds them in a checkout.

``farbus.remoting._server`` is the remoting server's engine.  Run ``make -C native``
first.  setup.py takes ``server`` for wheels, by ``cffi_modules``.
"""

# ruff: noqa: T201 - a build step says what it built

from __future__ import annotations

import os
import shutil
from pathlib import Path

import cffi

NATIVE = Path(__file__).resolve().parent
BUILD = NATIVE / "build"
ENGINE = BUILD / "server" / "libfarbus_server.a"
HEADER = NATIVE / "server" / "server.h"

server = cffi.FFI()
server.cdef(
    """
    struct server_status;
    struct server_options {
        int descriptor;
        const char *libcuda;
        const uint8_t *secret;
        struct server_status *status;
        const void *sessions;
        uint32_t session_count;
    };
    int server_serve(const struct server_options *options, char *why, int bytes);
    """
)
server.set_source(
    "farbus.remoting._server",
    '#include "server/server.h"',
    include_dirs=[str(NATIVE)],
    extra_objects=[str(ENGINE)],
    depends=[str(ENGINE), str(HEADER)],
    extra_link_args=["-pthread", "-ldl"],
    py_limited_api=True,
)


def _is_current(module: Path) -> bool:
    try:
        built = module.stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return all(source.stat().st_mtime_ns < built for source in (ENGINE, HEADER, Path(__file__)))


def main() -> None:
    """Put the module beside the package's other files, if what it is made from is newer."""
    if not ENGINE.exists():
        raise SystemExit(f"{ENGINE}: not there; run make -C {NATIVE} first")
    # The stable ABI: the same file serves every Python from 3.11 on.
    target = NATIVE.parent / "farbus" / "remoting" / "_server.abi3.so"
    if _is_current(target):
        return
    built = Path(server.compile(tmpdir=str(BUILD / "ffi"), verbose=False))
    target = target.with_name(built.name)
    # A running server keeps the old file: never write into it.
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(built, fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    print(f"built {target}")


if __name__ == "__main__":
    main()
