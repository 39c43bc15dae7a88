"""The fuzzers compile: `make fuzz-smoke`, which builds and runs them, takes minutes and is no part of the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "native" / "fuzz"


@pytest.mark.parametrize("source", sorted(path.name for path in FUZZ.glob("*.c")))
def test_it_compiles_without_a_warning(source: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    # As native/fuzz/remoting.mk and fuzz.mk have it.
    dialect = ["-std=c11", "-D_GNU_SOURCE"] if source.startswith("remoting") else ["-std=gnu11"]
    flags = [*dialect, "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run(["cc", *flags, source], cwd=FUZZ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
