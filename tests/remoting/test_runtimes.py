"""CUDA 12's runtime and NVRTC, as PyPI's wheels bring them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.remoting.harness import Remote

SCRIPT = Path(__file__).parent / "scripts" / "runtime_compilation.py"


def library(package: str, pattern: str) -> Path:
    """A library of an ``nvidia-*`` wheel, installed or unpacked where FARBUS_TEST_WHEELS says."""
    places = []
    if "FARBUS_TEST_WHEELS" in os.environ:
        places.append(Path(os.environ["FARBUS_TEST_WHEELS"]) / "nvidia" / package / "lib")
    try:
        spec = importlib.util.find_spec(f"nvidia.{package}")
    except ModuleNotFoundError:
        spec = None
    places += [Path(place) / "lib" for place in (spec.submodule_search_locations or [] if spec else [])]
    for place in places:
        for found in place.glob(pattern):
            return found
    return pytest.skip(f"no wheel with nvidia/{package}/lib/{pattern} is installed")


def test_runtime_compilation(remote: Remote) -> None:
    runtime = library("cuda_runtime", "libcudart.so.*")
    compiler = library("cuda_nvrtc", "libnvrtc.so.*")
    done = remote.run(sys.executable, SCRIPT, runtime, compiler)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
