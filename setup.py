"""Builds the native parts and packs them into the wheel; all else is in pyproject.toml.

``pip install .`` and ``python -m build`` run ``make -C native`` and put the
shim and the software GPU under ``farbus/_native``.  An editable install
leaves them in ``native/build``, where ``make build`` made them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NATIVE = Path(__file__).parent / "native"
LIBRARIES = ("shim/libcuda.so.1", "shim/libnvidia-ml.so.1", "softgpu/libcuda.so.1", "softgpu/libnvidia-ml.so.1")


class BuildWithNative(build_py):
    """Copies the native libraries beside the Python modules."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        subprocess.run(["make", "-C", str(NATIVE)], check=True)
        for library in LIBRARIES:
            source = NATIVE / "build" / library
            if not source.exists():
                continue
            target = Path(self.build_lib) / "farbus" / "_native" / library
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


setup(cmdclass={"build_py": BuildWithNative}, cffi_modules=["native/ffi_build.py:server"])
