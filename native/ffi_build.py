"""cffi modules over the native objects: ``python native/ffi_build.py`` builds them.

``farbus.remoting._server`` is the remoting server's engine.  Run ``make -C native``
first; setuptools uses ``server`` by ``cffi_modules``.
"""

# ruff: noqa: T201 - a build step says what it built

from __future__ import annotations

import shutil
from pathlib import Path

import cffi

NATIVE = Path(__file__).resolve().parent
BUILD = NATIVE / "build"

server = cffi.FFI()
server.cdef(
    """
    struct server_options {
        int descriptor;
        const char *libcuda;
        const uint8_t *secret;
    };
    int server_serve(const struct server_options *options, char *why, int bytes);
    """
)
server.set_source(
    "farbus.remoting._server",
    '#include "server/server.h"',
    include_dirs=[str(NATIVE)],
    extra_objects=[str(BUILD / "server" / "libfarbus_server.a")],
    extra_link_args=["-pthread", "-ldl"],
    py_limited_api=True,
)


def main() -> None:
    """Build in native/build and put the module beside the package's other files."""
    archive = BUILD / "server" / "libfarbus_server.a"
    if not archive.exists():
        raise SystemExit(f"{archive}: not there; run make -C {NATIVE} first")
    built = Path(server.compile(tmpdir=str(BUILD / "ffi"), verbose=False))
    target = NATIVE.parent / "remoting" / built.name
    # A running server keeps the old file: never write into it.
    fresh = target.with_suffix(".new")
    shutil.copyfile(built, fresh)
    fresh.replace(target)
    print(f"built {target}")


if __name__ == "__main__":
    main()
