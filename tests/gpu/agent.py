"""A GPU of this machine in a cluster: an agent finds it by its NVML, programs of a node without a GPU get it.

    python -m tests.gpu.agent --libcuda /usr/lib/x86_64-linux-gnu/libcuda.so.1 [--torch PYTHON] -o FOLDER -- PROGRAM...

starts ``farbus up`` with the machine's own devices, runs PROGRAM, a CUDA program, in a job and in ``farbus run``, and
asks NVML as such a program sees it.  A line for each step goes to standard output, devices and the daemons' logs to
FOLDER.  Exit status: 0; 1 where a step failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Cluster

#: The UUIDs that a program's NVML has.
NVML = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
"""
#: Copies alone where the device has no code in the wheel, as a software GPU.
TORCH = """
import torch
x = torch.arange(65536.0)
there = x.cuda()
assert torch.equal(there.clone().cpu(), x)
try:
    assert float((there + there).cpu()[-1]) == 2 * 65535
except RuntimeError as error:
    assert "no kernel image" in str(error), error
print(torch.cuda.get_device_name())
"""


class Failed(Exception):
    """Why a step failed, in one line."""


class Steps:
    """Steps with one cluster; one that fails does not keep the next from being taken."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.failed = 0

    def step(self, name: str, take: Callable[[], str]) -> None:
        try:
            print(f"ok {name}: {take()}", flush=True)
        except Exception as error:
            self.failed += 1
            print(f"failed {name}: {' '.join(str(error).split())[:300]}", flush=True)

    def farbus(self, *arguments: str | Path) -> str:
        """Run ``farbus ARGUMENTS...``; return the last line of its output."""
        done = self._cluster.run(*arguments)
        if done.returncode:
            raise Failed(f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
        return (done.stdout.strip().splitlines() or [""])[-1][:100]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libcuda", type=Path, required=True, help="the driver, with its NVML beside it")
    parser.add_argument("--torch", metavar="PYTHON", help="the Python of an environment with PyTorch")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("program", nargs="+", help="a CUDA program and its arguments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farbus-") as folder:
        cluster = Cluster(Path(folder))
        cluster.environment["LD_LIBRARY_PATH"] = str(arguments.libcuda.parent)
        steps = Steps(cluster)
        state = Path(folder) / "state"
        devices: list[dict[str, Any]] = []

        def start() -> str:
            # A node without a GPU comes first: programs run there.
            steps.farbus("up", "--detach", "--quiet", "--nodes", "head:0,gpu:0", "--physical", "gpu", "--state", state)
            return "ready"

        def find() -> str:
            devices.extend(row["device"] for row in cluster.ask("devices"))
            (arguments.output / "devices.json").write_text(json.dumps(devices, indent=1) + "\n")
            devices[:] = [each for each in devices if each["kind"] == "gpu"]
            if not devices:
                raise Failed("the agent found no GPU")
            return ", ".join(f"{each['model']} {each['id']}" for each in devices)

        def ask_nvml(*command: str | Path) -> str:
            done = cluster.run("run", "--quiet", "--gpus", "1", "--", *command)
            if not any(each["id"] in done.stdout for each in devices):
                raise Failed(f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")
            return done.stdout.strip()

        def give_back() -> str:
            if held := cluster.ask("leases"):
                raise Failed(f"{len(held)} leases are left")
            return "no lease is left"

        steps.step("up", start)
        try:
            if steps.failed:
                return 1
            steps.step("devices", find)
            run = ("run", "--gpus", "1", "--")
            job = ("submit", "--wait", "--gpus", "1")
            # A job beside the GPU has the driver itself, which not every loader finds.
            local = ("--node", "gpu", "--env", f"LD_LIBRARY_PATH={arguments.libcuda.parent}")
            steps.step("run", lambda: steps.farbus(*run, *arguments.program))
            steps.step("job", lambda: steps.farbus(*job, "--node", "head", "--", *arguments.program))
            steps.step("local job", lambda: steps.farbus(*job, *local, "--", *arguments.program))
            steps.step("NVML", lambda: ask_nvml(sys.executable, "-c", NVML))
            if tool := shutil.which("nvidia-smi"):
                steps.step("nvidia-smi", lambda: ask_nvml(tool, "-L"))
            if arguments.torch:
                steps.step("PyTorch", lambda: steps.farbus(*run, arguments.torch, "-W", "ignore", "-c", TORCH))
            steps.step("leases", give_back)
        finally:
            steps.step("down", lambda: steps.farbus("down"))
            if (logs := state / "logs").is_dir():
                shutil.copytree(logs, arguments.output / "daemons", dirs_exist_ok=True)
    return 1 if steps.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
