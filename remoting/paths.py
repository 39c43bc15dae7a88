"""Where Farbus's native files are: the only place that knows.

An installed Farbus has them in ``farbus/_native``, where setup.py packs them; a
checkout, also one installed as editable, in ``native/build``, where make puts
them.  Inside, both look the same::

    shim/libcuda.so.1               what a program with remote GPUs is started with
    shim/libnvidia-ml.so.1          its management library
    shim/*.preload.so               what is preloaded in containers, with any C library, and leads to the same two
    softgpu/libcuda.so.1            the software GPU
    softgpu/libnvidia-ml.so.1       its management library
    */libcuda.so, */libnvidia-ml.so the same, for programs that leave the number out
    bench/remoting_bench            the program that ``farbus bench remoting`` runs
    bench/softgpu_bench             the program that ``farbus bench softgpu`` runs

The remoting server's engine is the module ``farbus.remoting._server``, what a round of the
scheduler computes ``farbus.scheduler._kernels``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from farbus.errors import Unavailable

SHIM = "libcuda.so.1"
"""The shim's file, called as what it stands for."""

CURE = "run make build"
"""What to do about a native file that is not there."""


def package_root() -> Path:
    """Return the directory that holds the farbus package: what PYTHONPATH must name to find this Farbus."""
    # Not resolved: in a checkout farbus/remoting is a link to a directory elsewhere.
    return Path(__file__).absolute().parents[2]


def native_directory() -> Path:
    """Return the directory of the native files; it is not said that they are there."""
    installed = package_root() / "farbus" / "_native"
    return installed if installed.is_dir() else package_root() / "native" / "build"


def shim_directory() -> Path:
    """Return the directory of the shim's ``libcuda.so.1``."""
    return native_directory() / "shim"


def shim_library() -> Path:
    """Return the shim; raise :class:`Unavailable` where it is not built or can't be preloaded."""
    return preloadable(require(shim_directory() / SHIM, what="the shim"))


def software_gpu_directory() -> Path:
    """Return the directory of the software GPU's ``libcuda.so.1`` and ``libnvidia-ml.so.1``."""
    return native_directory() / "softgpu"


def software_gpu_library() -> Path:
    """Return the software GPU; raise :class:`Unavailable` where it is not built."""
    return require(software_gpu_directory() / "libcuda.so.1", what="the software GPU")


def remoting_bench_program() -> Path:
    """Return the program that measures remoting; raise :class:`Unavailable` where it is not built."""
    return require(native_directory() / "bench" / "remoting_bench", what="the measuring program")


def softgpu_bench_program() -> Path:
    """Return the program that measures the software GPU; raise :class:`Unavailable` where it is not built."""
    return require(native_directory() / "bench" / "softgpu_bench", what="the measuring program")


def require(path: Path, *, what: str) -> Path:
    """Return ``path``; raise :class:`Unavailable` when no such file is there."""
    if not path.is_file():
        raise Unavailable(f"{path}: {what} is not built", hint=CURE)
    return path


def preloadable(path: Path) -> Path:
    """Return ``path``; raise :class:`Unavailable` for one that LD_PRELOAD would take for several (ld.so(8))."""
    if any(character.isspace() or character == ":" for character in str(path)):
        raise Unavailable(
            f"{path}: LD_PRELOAD separates its entries by blanks and colons",
            hint="put Farbus into a directory without them",
        )
    return path


def native_parts() -> dict[str, bool]:
    """Return for every native part whether it is there, by the name that a person knows it by."""
    return {
        "shim": (shim_directory() / "libcuda.so.1").is_file(),
        "shim's NVML": (shim_directory() / "libnvidia-ml.so.1").is_file(),
        "software GPU": (software_gpu_directory() / "libcuda.so.1").is_file(),
        "software NVML": (software_gpu_directory() / "libnvidia-ml.so.1").is_file(),
        "remoting server": importlib.util.find_spec("farbus.remoting._server") is not None,
        "scheduler kernels": importlib.util.find_spec("farbus.scheduler._kernels") is not None,
    }
