"""The CUDA programs of tests/programs, compiled by nvcc as any program is, run on the software GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.programs.manifest import HERE, PROGRAMS, Program
from tests.softgpu.driver_programs import environment, require_library

RUN_TIMEOUT_S = 120
# Two seconds of one core each, when they are not compiled yet.
SHORT_RUN = 24


def representative() -> list[Program]:
    """A workload and the programs that add most of the manifest's features to it, as many as a short run can compile.

    The others, and templates that take a minute each, run with FARBUS_ALL_PROGRAMS=1 (make check-programs).
    """
    candidates = [program for program in PROGRAMS if program.category != "cub"]
    chosen = [next(program for program in candidates if program.category == "workload")]
    while len(chosen) < SHORT_RUN:
        had = {feature for program in chosen for feature in program.features}
        chosen.append(max(candidates, key=lambda program: len(set(program.features) - had)))
    return chosen


CHOSEN = list(PROGRAMS) if os.environ.get("FARBUS_ALL_PROGRAMS") == "1" else representative()
# Whole numbers, divergence, shared memory and shuffles; exact also with -use_fast_math.
VARIED = ("radix_sort", "sha256", "cooperative_tiles", "function_pointers")
VARIANTS: dict[str, tuple[int, tuple[str, ...]]] = {
    **{f"compute_{compute}": (compute, ()) for compute in (80, 90, 100, 120)},
    "debug": (75, ("-G",)),
    "lineinfo": (75, ("-lineinfo",)),
    "rdc": (75, ("-rdc=true",)),
    "fast_math": (75, ("-use_fast_math",)),
    "raw": (75, ("-no-compress",)),
    "lz4": (75, ("--compress-mode=speed",)),
    "zstd": (75, ("--compress-mode=size",)),
}
VARIATIONS = [
    (program, variant)
    for program in CHOSEN
    if len(CHOSEN) == len(PROGRAMS) and program.name in VARIED
    for variant in VARIANTS
]
WORKLOADS = [program for program in CHOSEN if program.category == "workload"]


def run(program: Program, node: Path, *arguments: str, options: str = "") -> subprocess.CompletedProcess[str]:
    return run_compiled(program.compile(), node, *arguments, options=options)


def run_compiled(executable: Path, node: Path, *arguments: str, options: str = "") -> subprocess.CompletedProcess[str]:
    require_library()
    return subprocess.run(
        [str(executable), *arguments],
        env=environment(str(node), options),
        cwd=node,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


@pytest.mark.timeout(900)  # the first run compiles
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_program_agrees_with_the_cpu(program: Program, tmp_path: Path) -> None:
    done = run(program, tmp_path)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.startswith(f"ok {program.name}")
    assert done.stdout.count("\n") == 1


# Without any it would be told as one test that is skipped.
if VARIATIONS:

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize(("program", "variant"), VARIATIONS, ids=lambda value: getattr(value, "name", value))
    def test_program_compiled_otherwise(program: Program, variant: str, tmp_path: Path) -> None:
        """With make check-programs only; test_engine_programs.py has the same variants of one file of kernels."""
        compute, flags = VARIANTS[variant]
        executable = program.compile(compute=compute, flags=flags)
        done = run_compiled(executable, tmp_path, options=f"cc={compute // 10}.{compute % 10}")
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.stdout.startswith(f"ok {program.name}")


def quick_arguments(program: Program) -> tuple[str, ...]:
    """A workload's own size takes too long when every access is looked at; lavamd's work grows with the cube."""
    if program.category != "workload":
        return ()
    return ("--size", "2" if program.name == "lavamd" else "64", "--iterations", "2")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_strict_mode_finds_nothing_in_right_programs(program: Program, tmp_path: Path) -> None:
    done = run(program, tmp_path, *quick_arguments(program), options="strict=1")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert "race" not in done.stderr


@pytest.mark.parametrize("program", WORKLOADS, ids=lambda program: program.name)
def test_workload_reports_its_kernels_time(program: Program, tmp_path: Path) -> None:
    size = int(quick_arguments(program)[1])
    done = run(program, tmp_path, "--json", *quick_arguments(program))
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    told = json.loads(done.stdout)
    assert told.pop("kernel_seconds") > 0
    assert told == {"name": program.name, "size": size, "iterations": 2, "ok": True}


@pytest.mark.parametrize("arguments", [("--size", "0"), ("--size", "12x"), ("--iterations",), ("--colour", "red")])
def test_wrong_argument_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(WORKLOADS[0], tmp_path, *arguments)
    assert done.returncode == 1
    assert done.stdout.startswith(f"FAIL {WORKLOADS[0].name} ")
    assert arguments[0] in done.stdout


def test_a_wrong_result_fails(tmp_path: Path) -> None:
    """A program whose kernel is broken on purpose must say so: the checks do check."""
    reduction = next(program for program in PROGRAMS if program.name == "reduction")
    text = reduction.source.read_text()
    broken = tmp_path / "reduction.cu"
    broken.write_text(text.replace("offset = 16; offset > 0", "offset = 16; offset > 1", 1))
    assert broken.read_text() != text
    flags = (*reduction.flags, f"-I{reduction.source.parent}")
    done = run(dataclasses.replace(reduction, name="reduction_broken", source=broken, flags=flags), tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL reduction sum by shuffle: ")


def test_manifest_lists_every_program_once() -> None:
    listed = [program.source for program in PROGRAMS]
    assert sorted(listed) == sorted([*HERE.glob("suite/*.cu"), *HERE.glob("workloads/*.cu")])
    assert all(program.source.stem == program.name for program in PROGRAMS)
