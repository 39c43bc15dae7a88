"""The machine, its GPU and its tools, a line each: python facts.py LIBCUDA, run by the Python that has PyTorch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def driver(path: str) -> str:
    cuda = ctypes.CDLL(path)
    version = ctypes.c_int()
    if status := cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(version)):
        raise OSError(f"{path}: error {status}")
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def device(path: str) -> str:
    cuda = ctypes.CDLL(path)
    name, memory, number = ctypes.create_string_buffer(100), ctypes.c_size_t(), ctypes.c_int()
    if (
        status := cuda.cuInit(0)
        or cuda.cuDeviceGetName(name, 100, 0)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), 0)
    ):
        raise OSError(f"{path}: error {status}")
    capability = []
    for attribute in COMPUTE_CAPABILITY:
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
        capability.append(str(number.value))
    return f"{name.value.decode()}, {memory.value / 2**30:.1f} GiB, compute capability {'.'.join(capability)}"


def said(*command: str, line: int = 0) -> str:
    program = shutil.which(command[0])
    if not program:
        return "not there"
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=30, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines() or ["it said nothing"]
    return lines[line].strip()


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} of {model}"


def main() -> int:
    libcuda = sys.argv[1]
    facts: dict[str, Callable[[], str]] = {
        "device": lambda: device(libcuda),
        "driver": lambda: driver(libcuda),
        "NVIDIA's driver": lambda: said(
            "nvidia-smi", "--query-gpu=driver_version,memory.used", "--format=csv,noheader"
        ),
        "nvidia-smi": lambda: said("nvidia-smi", "-L"),
        "torch": lambda: importlib.metadata.version("torch"),
        "numpy": lambda: importlib.metadata.version("numpy"),
        "nvcc": lambda: said("nvcc", "--version", line=-2),
        "gcc": lambda: said("gcc", "--version"),
        "Python": lambda: f"{platform.python_version()}, {sys.executable}",
        "kernel": platform.release,
        "C library": lambda: " ".join(platform.libc_ver()),
        "processors": processor,
        "user": lambda: str(os.getuid()),
        "LD_LIBRARY_PATH": lambda: os.environ.get("LD_LIBRARY_PATH", ""),
    }
    for name, fact in facts.items():
        try:
            told = fact()
        except (OSError, importlib.metadata.PackageNotFoundError, subprocess.TimeoutExpired) as error:
            told = f"unknown: {error}"
        print(f"{name}: {told}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
