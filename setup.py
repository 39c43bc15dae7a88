"""Builds the native parts and packs them; all else is in pyproject.toml.

``pip install .`` and ``python -m build`` run ``make -C native``, which needs make
and a C compiler, and put the libraries into ``farbus/_native``.  An editable
install leaves them in ``native/build``: farbus/remoting/paths.py knows both places.

``FARBUS_NATIVE=0`` leaves the native parts out of an editable install: ``make build``
makes them itself, at the same time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
NATIVE = ROOT / "native"

# What is packed, relative to native/build and to farbus/_native alike.
PACKED = (
    "shim/libcuda.so.1",
    "shim/libcuda.so",
    "shim/libcuda.preload.so",
    "shim/libnvidia-ml.so.1",
    "shim/libnvidia-ml.so",
    "shim/libnvidia-ml.preload.so",
    "softgpu/libcuda.so.1",
    "softgpu/libcuda.so",
    "softgpu/libnvidia-ml.so.1",
    "softgpu/libnvidia-ml.so",
    "bench/remoting_bench",
    "bench/softgpu_bench",
)

WITHOUT_NATIVE = os.environ.get("FARBUS_NATIVE") == "0"


class BuildPython(build_py):
    """Starts from an empty directory: setuptools would pack modules that an earlier version had."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "farbus", ignore_errors=True)
        super().run()


class BuildNative(Command):
    """Runs make in native/ and copies the libraries beside the Python modules.

    setuptools calls it for ``build`` and for editable installs alike
    (setuptools.command.build.SubCommand).
    """

    description = "build the shim, the software GPU, the server's engine and the scheduler's kernels with make"
    user_options: list[tuple[str, str | None, str]] = []

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        if WITHOUT_NATIVE and self.editable_mode:
            return
        # An outer make's job server is not open to a make below pip.
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        jobs = len(os.sched_getaffinity(0))
        try:
            subprocess.run(["make", "-s", f"-j{jobs}", "-C", str(NATIVE)], check=True, env=environment)
        except FileNotFoundError:
            raise SystemExit("farbus: make is not in PATH; install make and a C compiler") from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"farbus: make -C native failed with exit status {error.returncode}; see above") from None
        if self.editable_mode:
            return
        for name, target in zip(PACKED, self.get_outputs(), strict=True):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(NATIVE / "build" / name, target)

    def get_source_files(self) -> list[str]:
        """MANIFEST.in names the sources."""
        return []

    def get_outputs(self) -> list[str]:
        if self.editable_mode or self.build_lib is None:
            return []
        return [str(Path(self.build_lib) / "farbus" / "_native" / name) for name in PACKED]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildExtension(build_ext):
    """The cffi modules; in place, ffi_build.py puts them there in one step, since processes may run on the old ones."""

    def run(self) -> None:
        if not (self.inplace or self.editable_mode):
            super().run()
        elif not WITHOUT_NATIVE:
            subprocess.run([sys.executable, str(NATIVE / "ffi_build.py")], check=True)


class SourceDistribution(sdist):
    """Packs the subpackages once, at the root, and ``farbus/``'s links to them as links."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        links = [path for path in (ROOT / "farbus").iterdir() if path.is_symlink()]
        behind = tuple(f"farbus/{link.name}/" for link in links)
        super().make_release_tree(base_dir, [name for name in files if not name.startswith(behind)])
        for link in links:
            target = Path(base_dir) / "farbus" / link.name
            if not target.is_symlink():
                target.symlink_to(link.readlink())


# After build_py, which empties the directory that the libraries go to, and before build_ext, which links the engine.
build.sub_commands.insert(1, ("build_native", None))

setup(
    cmdclass={
        "build_py": BuildPython,
        "build_native": BuildNative,
        "build_ext": BuildExtension,
        "sdist": SourceDistribution,
    },
    cffi_modules=["native/ffi_build.py:server", "native/ffi_build.py:kernels"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
