"""The CUDA programs of suite.toml: what they are, and how they are compiled.

Any test may run them: on the software GPU, through remoting, on a real GPU.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Compiled programs are kept from run to run, under a name that changes with all that made them.
BUILT = HERE.parents[1] / "native" / "build" / "programs"
# CUB's headers take a minute of one core; a busy machine takes longer.
COMPILE_TIMEOUT_S = 600


@dataclass(frozen=True)
class Program:
    name: str
    source: Path
    features: tuple[str, ...]
    flags: tuple[str, ...]
    compute: int  # the least compute capability, 75 for 7.5
    exact: bool  # PTX for that compute capability alone, as compute_90a
    category: str  # `class` in suite.toml, which explains it

    def architecture(self, compute: int = 0) -> str:
        """nvcc's option for PTX of `compute`, or of the least that will do."""
        if self.exact:
            # -arch=compute_90a brings code for compute_90 as well, which can't have what this is for.
            return f"-gencode=arch=compute_{self.compute}a,code=compute_{self.compute}a"
        return f"-arch=compute_{max(compute, self.compute)}"

    def compile(self, *, compute: int = 0, flags: tuple[str, ...] = ()) -> Path:
        """Compile with nvcc into PTX of `compute` (or the least that will do) and return the executable's path.

        Skips the test where there is no nvcc; fails it with the compiler's words where nvcc does.
        """
        compiler, version = nvcc()
        options = [*self.flags, self.architecture(compute), *flags]
        digest = hashlib.sha256()
        headers = sorted(HERE.glob("*/*.h"))
        for part in (version, *options, *(path.read_text() for path in (self.source, *headers))):
            digest.update(part.encode() + b"\0")
        executable = BUILT / f"{self.name}-{digest.hexdigest()[:16]}"
        if not executable.exists():
            BUILT.mkdir(parents=True, exist_ok=True)
            unfinished = executable.with_suffix(f".{os.getpid()}")
            done = subprocess.run(
                [compiler, *options, str(self.source), "-o", str(unfinished)],
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                pytest.fail(f"nvcc can't compile {self.source}:\n{done.stdout}{done.stderr}", pytrace=False)
            unfinished.replace(executable)  # at once: another run may want the same program
        return executable


@functools.cache
def nvcc() -> tuple[str, str]:
    """Path and version of nvcc, or skip."""
    compiler = os.environ.get("NVCC") or shutil.which("nvcc")
    if not compiler:
        pytest.skip("needs nvcc")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    return compiler, version.stdout


def _read() -> tuple[Program, ...]:
    manifest = tomllib.loads((HERE / "suite.toml").read_text())
    defaults = manifest["defaults"]
    return tuple(
        Program(
            name=entry["name"],
            source=HERE / entry["source"],
            features=tuple(entry["features"]),
            flags=(*defaults["flags"], *entry.get("flags", ())),
            compute=entry.get("compute", defaults["compute"]),
            exact=entry.get("exact", False),
            category=entry["class"],
        )
        for entry in manifest["program"]
    )


PROGRAMS = _read()
