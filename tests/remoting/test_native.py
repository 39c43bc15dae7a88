"""The native tests of wire and cudart, as make builds them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.remoting.harness import BUILD, ROOT


@pytest.mark.parametrize("name", ["wire_test", "cudart_test"])
def test_native(name: str) -> None:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("make and a C compiler are not installed")
    program = BUILD / "tests" / name
    subprocess.run(["make", "-s", "-C", ROOT / "native", f"build/tests/{name}"], check=True, capture_output=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
