"""cuda_abi.h against an installed cuda.h: values, sizes, offsets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farbus.remoting.codegen.abi import structures
from farbus.remoting.spec.enums import ENUMS, NEWER_CONSTANTS
from farbus.remoting.spec.structures import MACROS, NEWER_STRUCTURES

ROOT = Path(__file__).resolve().parents[2]


def toolkit_include() -> Path | None:
    """The include directory of an installed CUDA 13.0, or None."""
    nvcc = shutil.which("nvcc")
    candidates = [Path(os.environ["CUDA_HOME"])] if "CUDA_HOME" in os.environ else []
    candidates += [Path(nvcc).resolve().parents[1]] if nvcc else []
    candidates += [Path("/usr/local/cuda-13.0"), Path("/usr/local/cuda")]
    for candidate in candidates:
        header = candidate / "include" / "cuda.h"
        if header.exists() and "#define CUDA_VERSION 13000" in header.read_text(errors="replace"):
            return header.parent
    return None


def constants_of_13_0() -> list[str]:
    return [name for constants in ENUMS.values() for name in constants if name not in NEWER_CONSTANTS]


def facts(header: str, include: Path, directory: Path) -> list[str]:
    lines = []
    for structure in structures():
        name = structure.name
        if name in NEWER_STRUCTURES:
            continue
        lines.append(f'printf("{name} %zu %zu\\n", sizeof({name}), _Alignof({name}));')
        lines += [f'printf("{name}.{m} %zu\\n", offsetof({name}, {m}));' for m in structure.members]
    lines += [f'printf("{c} %lld\\n", (long long){c});' for c in constants_of_13_0()]
    lines += [f'printf("{m} %lld\\n", (long long){m});' for m in MACROS]
    body = "\n".join(lines)
    source = directory / "facts.c"
    source.write_text(f"#include {header}\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{body}\n}}\n")
    program = directory / "facts"
    # What cuda.h shows to the driver's own sources only: structures of CUDA 2.
    subprocess.run(["cc", "-w", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", source, "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_types_are_those_of_cuda(tmp_path: Path) -> None:
    include = toolkit_include()
    if include is None:
        pytest.skip("CUDA 13.0's cuda.h is not installed")
    theirs = facts("<cuda.h>", include, tmp_path)
    ours = facts('"cuda_abi.h"', ROOT / "native" / "generated", tmp_path)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
