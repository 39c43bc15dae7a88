"""The CUDA programs of tests/programs/suite.toml through each transport: those that the software GPU runs directly in
tests/softgpu/test_programs.py, a short run's or, with FARBUS_ALL_PROGRAMS=1 (make check-programs), all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs.manifest import PROGRAMS, Program
from tests.remoting.harness import Remote
from tests.softgpu.test_programs import CHOSEN, quick_arguments

#: What a program asks for, and whether TCP is encrypted.
TRANSPORTS = {"shm": ("shm", True), "unix": ("unix", True), "tls": ("tcp", True), "tcp": ("tcp", False)}
#: What remoting refuses, by the line that says so (README.md).
REFUSED = {"mapped_memory": "farbus: pinned memory is not mapped: "}


@pytest.mark.timeout(900)  # the first run compiles
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_program_agrees_with_the_cpu_over_each_transport(lease: Callable[..., Remote], program: Program) -> None:
    executable = program.compile()
    remotes = {tls: lease(tls=tls) for tls in (True, False)}
    for name, (transport, tls) in TRANSPORTS.items():
        done = remotes[tls].run(executable, *quick_arguments(program), FARBUS_TRANSPORT=transport)
        if program.name in REFUSED:
            assert done.returncode == 1, f"over {name}: {done.stdout}{done.stderr}"
            assert REFUSED[program.name] in done.stderr, f"over {name}: {done.stderr}"
            continue
        assert done.returncode == 0, f"over {name}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.stdout.startswith(f"ok {program.name}"), f"over {name}: {done.stdout}"


def test_there_are_sixty_of_one_behaviour_each() -> None:
    small = [program for program in PROGRAMS if program.category != "workload" and program.name not in REFUSED]
    assert len(small) >= 60
