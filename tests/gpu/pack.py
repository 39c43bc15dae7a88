"""What tests/gpu/check.py needs on a machine with a GPU, without network: one archive, unpacked into a checkout there.

    python -m tests.gpu.pack -o build/payload

It has what ``make build`` and the tests have made here (shim, server, software GPU, compiled programs), kernels.cu and
errors.cu with machine code for the GPUs of today, and the packages of pyproject.toml for another Python.  All of it
goes to paths that git ignores.  NumPy comes with PyTorch; OR-Tools, half as large as the rest, is rarely needed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAME = "farbus-gpu.tar.xz"
#: Where what is of this directory lies in a checkout: tests/gpu/check.py.
PLACE = Path("build") / "gpu"

#: Without any of these nothing can be checked.
BUILT = (
    *(Path("native/build") / name for name in ("shim/libcuda.so.1", "shim/libnvidia-ml.so.1", "softgpu/libcuda.so.1")),
    Path("native/build/bench/remoting_bench"),
    Path("remoting/_server.abi3.so"),
    Path("scheduler/_kernels.abi3.so"),
)
#: Folders of native/build that are used there, and what of them is used here alone.
FOLDERS = ("shim", "softgpu", "bench", "programs")
INTERMEDIATE = {".o", ".d"}

LEFT_OUT = {"numpy", "ortools"}
TEST_PACKAGES = {"pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis"}

#: Machine code, as what compiles PTX is the driver, and its time not ours; and PTX that every software GPU runs.
CODE = ("-arch=all-major", "-gencode", "arch=compute_75,code=compute_75")
PROGRAMS = {"kernels": "-O2", "errors": "-O1"}

#: tests/programs/manifest.py names programs by what nvcc says of itself: a build of another day must say the same.
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
cat <<'END'
{version}
END
else
exec nvcc "$@"
fi
"""


class Unpackable(Exception):
    """What is missing, in one line."""


def requirements(project: Mapping[str, object]) -> list[str]:
    """What pyproject.toml asks for, of which nothing brings NumPy, and what its tests of a GPU do."""

    def name(line: str) -> str:
        return re.split(r"[^\w-]", line, maxsplit=1)[0]

    needed: list[str] = project["project"]["dependencies"]  # type: ignore[index]
    groups: dict[str, list[str]] = project["dependency-groups"]  # type: ignore[assignment]
    tests = [line for line in groups["dev"] if name(line) in TEST_PACKAGES]
    return [line for line in needed if name(line) not in LEFT_OUT] + tests


def built(root: Path) -> Iterator[Path]:
    """The files below ``root`` that were built here and are used there, by their paths in a checkout."""
    for path in BUILT:
        if not (root / path).is_file():
            raise Unpackable(f"{path} is not built: run make build")
        if path.parts[0] != "native":
            yield path
    for folder in FOLDERS:
        for path in sorted((root / "native" / "build" / folder).rglob("*")):
            if path.is_file() and path.suffix not in INTERMEDIATE:
                yield path.relative_to(root)


def run(*command: str | Path, what: str) -> str:
    """Run a tool and return what it prints; raise with its last words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unpackable(f"{what}: {command[0]}: {error.strerror}") from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said or ["it said nothing"]
        raise Unpackable(f"{what}: {' '.join(errors[0].split())}")
    return done.stdout


def prepare(folder: Path, python: str) -> None:
    """Make in ``folder`` what is not in this checkout: programs, packages for ``python``, a word on nvcc."""
    for name, level in PROGRAMS.items():
        run("nvcc", level, *CODE, "-o", folder / name, HERE / f"{name}.cu", what=f"compile {name}.cu")
    script = folder / "nvcc"
    script.write_text(NVCC.format(version=run("nvcc", "--version", what="nvcc").strip()))
    script.chmod(0o755)
    asked = requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    target = ("--target", folder / "site", "--python-version", python, "--only-binary", ":all:")
    run(*pip, *target, *asked, what=f"packages for Python {python}")
    (folder / "python").write_text(python + "\n")


def write(archive: Path, root: Path, files: Sequence[Path], made: Path) -> Counter[str]:
    """Write ``files`` of ``root`` and all of ``made``, which becomes PLACE; return how many bytes each part has."""
    sizes: Counter[str] = Counter()
    named = [(root / path, path) for path in files]
    named += [(path, PLACE / path.relative_to(made)) for path in sorted(made.rglob("*")) if path.is_file()]
    with tarfile.open(archive, "w:xz") as tar:
        for path, name in named:
            tar.add(path, name)
            part = name.relative_to(PLACE) if name.is_relative_to(PLACE) else name
            sizes["/".join(part.parts[:3] if part.parts[0] == "native" else part.parts[:1])] += path.stat().st_size
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=f"where {NAME} goes")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the Python there (default: 3.12)")
    parser.add_argument("--limit", type=int, default=64, metavar="MIB", help="most that may be taken there (64)")
    arguments = parser.parse_args()
    archive = arguments.output / NAME
    fresh = archive.with_suffix(f".{os.getpid()}")
    try:
        files = list(built(ROOT))
        arguments.output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="farbus-pack-") as folder:
            prepare(Path(folder), arguments.python)
            sizes = write(fresh, ROOT, files, Path(folder))
        fresh.replace(archive)
    except (Unpackable, OSError) as error:
        fresh.unlink(missing_ok=True)
        print(f"pack: {error}", file=sys.stderr)
        return 1
    for name, size in sorted(sizes.items()):
        print(f"{size / 2**20:8.1f} MiB  {name}")
    packed = archive.stat().st_size / 2**20
    print(f"{packed:8.1f} MiB  {archive}, for Python {arguments.python}")
    if packed > arguments.limit:
        print(f"pack: more than {arguments.limit} MiB: remove old programs in native/build/programs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
