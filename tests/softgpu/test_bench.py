"""farbus bench softgpu."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from farbus.remoting import softgpu_bench
from tests.softgpu.driver_programs import require_library
from tests.softgpu.engine import ROOT


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    require_library()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "build/bench/softgpu_bench"], check=True)


def test_a_ratio_is_the_median_over_pairs() -> None:
    own = [{"k": (value, "ms")} for value in (1.0, 2.0, 9.0)]
    other = [{"k": (value, "ms")} for value in (2.0, 2.0, 3.0)]
    [result] = softgpu_bench.combine(own, other)
    assert (result.value, result.reference, result.ratio) == (2.0, 2.0, 1.0)


def test_a_build_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    directory = ROOT / "native/build/softgpu"
    assert softgpu_bench.main(["--json", "--quick", "--against", str(directory)]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in told["results"]}
    assert told["bench"] == "softgpu"
    assert {"empty_launch_us", "empty_launch_64x256_us", "graph_100_us", "matmul_tile_16", "module_load"} <= set(rows)
    assert rows.pop("event_time_error")["unit"] == "percent"
    assert all(row["value"] > 0 and row["reference"] > 0 and row["ratio"] > 0 for row in rows.values())


def test_processor_time_of_the_same_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert softgpu_bench.main(["--json", "--quick", "--processor-time"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["results"]}
    assert {"empty_launch_64x256_us", "reduce", "module_load"} <= set(rows)
    assert "event_time_error" not in rows
    assert all(row["value"] > 0 for row in rows.values())


def test_a_directory_without_a_library_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert softgpu_bench.main(["--quick", "--against", str(tmp_path)]) == 1
    assert f"{tmp_path}/libcuda.so.1" in capsys.readouterr().err


def test_a_library_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "libcuda.so.1"
    wrong.write_text("text")
    assert softgpu_bench.main(["--quick", "--against", str(tmp_path)]) == 1
    assert str(wrong) in capsys.readouterr().err
