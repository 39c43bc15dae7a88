"""A program in a container, which knows nothing of Farbus, uses a remote GPU by CDI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farbus.remoting import paths
from tests.end_to_end.conftest import Cluster

SPECIFICATIONS = Path("/run/cdi")
"""The one directory that every engine looks into, and the agent cleans."""


@pytest.fixture
def root(tmp_path: Path, compiled: Callable[..., Path]) -> Path:
    """A container's whole file system: a CUDA program and the system's libraries that it and the shim need."""
    root = tmp_path / "root"
    for name in ("proc", "sys", "dev", "run", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy2(compiled("cluster/stay.cu"), root / "program")
    needs = subprocess.run(
        ["ldd", root / "program", paths.shim_library()], capture_output=True, text=True, check=True
    ).stdout
    for library in set(re.findall(r"(/\S+) \(0x", needs)):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    return root


@pytest.fixture
def engine(root: Path) -> list[str]:
    """A container engine that works here, as the beginning of its command."""
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("needs podman, and root")
    said = []
    for runtime in ("crun", "runc"):
        command = ["podman", "--runtime", runtime, "run", "--rm", "--network", "host"]
        # Podman's own limits are more than a machine may allow.
        command += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        done = subprocess.run(
            [*command, "--rootfs", root, "/program", "--help"], capture_output=True, text=True, timeout=60, check=False
        )
        # 125: the engine's own error; 126 and 127: the runtime's.
        if done.returncode < 125:
            return command
        said.append(done.stderr.strip())
    pytest.skip(f"podman starts no container here: {said}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "up")
    cluster.runtime.mkdir(mode=0o700)
    up = cluster.run("up", "--detach", "--nodes", "alpha:1,beta:0", "--cdi", SPECIFICATIONS)
    assert up.returncode == 0, up.stderr
    try:
        yield cluster
    finally:
        down = cluster.run("down")
        assert down.returncode == 0, down.stderr


def test_a_container_finds_the_gpu_that_its_engine_is_asked_for(
    engine: list[str], cluster: Cluster, root: Path
) -> None:
    # The engine itself has no use for the shim, and the container gets it by the specification.
    command = f'unset LD_PRELOAD LD_LIBRARY_PATH; {" ".join(engine)} --device "$FARBUS_CDI_DEVICE"'
    done = cluster.run("run", "--quiet", "--", "sh", "-c", f"{command} --rootfs {root} /program /dev/null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "using 1 device(s)\nright throughout\n" in done.stdout
    assert list(SPECIFICATIONS.glob("farbus.beta.*")) == []
