"""PyTorch from PyPI on a remote GPU: how many of its operations compute right (docs/pytorch.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.pytorch.conftest import HERE, PyTorch

pytestmark = [pytest.mark.slow, pytest.mark.pytorch]

#: torch.compile of 330 functions, on two cores that others use too.
OPERATIONS_TIMEOUT_S = 4 * 3600

REAL_GPU = "FARBUS_TEST_LIBCUDA" in os.environ


def test_pytorch_sees_the_device(pytorch: PyTorch) -> None:
    done = pytorch.run(
        "-c",
        "import torch; x = torch.arange(6.0); "
        "print(torch.cuda.is_available(), torch.cuda.device_count(), torch.equal(x.cuda().clone().cpu(), x))",
    )
    assert done.stdout.split() == ["True", "1", "True"], done.stderr


@pytest.mark.skipif(REAL_GPU, reason="is about a GPU that lacks the wheel's machine code")
def test_an_operation_without_code_for_the_device_says_so(pytorch: PyTorch) -> None:
    """And goes on: the error is that call's alone."""
    done = pytorch.run(
        "-c",
        "import torch; x = torch.arange(6.0).cuda()\n"
        "try: x + x\n"
        "except RuntimeError as error: print(error)\n"
        "print(x.cpu().tolist())",
    )
    assert "no kernel image is available for execution on the device" in done.stdout
    assert done.stdout.splitlines()[-1] == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"


@pytest.mark.timeout(OPERATIONS_TIMEOUT_S)
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_operations_compute_right(pytorch: PyTorch, mode: str, tmp_path: Path) -> None:
    """What the software GPU has PTX for is right as before; what it has none for says so; nothing is wrong."""
    report = pytorch.operations(mode, tmp_path, timeout_s=OPERATIONS_TIMEOUT_S)
    operations = report["operations"]
    right = {name for name, result in operations.items() if result["verdict"] == "right"}
    others = {name: result for name, result in operations.items() if name not in right}
    if REAL_GPU:
        assert not others
    else:
        recorded = set(json.loads((HERE / "right.json").read_text())[mode])
        assert not {name: others[name] for name in recorded & others.keys()}
        bad = {"wrong", "crashed", "hung"}
        assert not {name: result for name, result in others.items() if result["verdict"] in bad}


@pytest.mark.gpu
@pytest.mark.timeout(OPERATIONS_TIMEOUT_S)
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU in this machine")
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_all_operations_are_right_on_a_local_gpu(native: PyTorch, mode: str, tmp_path: Path) -> None:
    operations = native.operations(mode, tmp_path, timeout_s=OPERATIONS_TIMEOUT_S)["operations"]
    assert not {name: result for name, result in operations.items() if result["verdict"] != "right"}
