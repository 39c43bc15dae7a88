"""fio's arguments and its JSON: what Debian's fio 3.33 and 3.39 print."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from farbus.errors import Unavailable
from farbus.linux.fio import FioJob, Pattern, check_fio, parse_fio, run_fio


def side(*, bw: int, iops: float, mean: float, p99: float | None = None) -> dict[str, object]:
    percentiles = {} if p99 is None else {"percentile": {"50.000000": mean, "99.000000": p99}}
    return {"bw_bytes": bw, "iops": iops, "clat_ns": {"mean": mean, "min": 1, **percentiles}}


def output(*, error: int = 0) -> str:
    nothing = side(bw=0, iops=0.0, mean=0.0)
    return "fio: a word before\n" + json.dumps({
        "fio version": "fio-3.33",
        "jobs": [{"error": error, "read": side(bw=4096000, iops=1000.5, mean=950_000.0, p99=2_000_000.0),
                  "write": nothing}],
    })  # fmt: skip


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "fio"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_was_reached_is_read() -> None:
    found = parse_fio(output(), Pattern.RANDOM_READ)
    assert (found.bytes_per_s, found.iops, found.mean_us, found.p99_us) == (4096000, 1000.5, 950.0, 2000.0)


def test_a_job_that_failed_is_no_figure() -> None:
    with pytest.raises(Unavailable, match="failed with error 5"):
        parse_fio(output(error=5), Pattern.READ)


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(Unavailable, match="not understood"):
        parse_fio("no such thing", Pattern.READ)


def test_a_reading_can_write_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "arguments"
    fio = program(tmp_path, f'echo "$@" > {kept}; cat <<END\n{output()}\nEND')
    run_fio(FioJob(path="/dev/x", pattern=Pattern.READ, block_bytes=4096, depth=2, seconds=1.5), program=fio)
    said = kept.read_text().split()
    assert {"--readonly", "--rw=read", "--bs=4096", "--iodepth=2", "--runtime=1500ms", "--filename=/dev/x"} <= set(said)


def test_a_device_by_its_number_is_one_file(tmp_path: Path) -> None:
    kept = tmp_path / "arguments"
    fio = program(tmp_path, f'printf "%s\\n" "$@" > {kept}; cat <<END\n{output()}\nEND')
    run_fio(FioJob(path="/dev/block/259:1", pattern=Pattern.READ, block_bytes=4096, depth=2, seconds=0.1), program=fio)
    assert "--filename=/dev/block/259\\:1" in kept.read_text().splitlines()


def test_writes_may_be_read_back(tmp_path: Path) -> None:
    kept = tmp_path / "arguments"
    fio = program(tmp_path, f'echo "$@" > {kept}; cat <<END\n{output()}\nEND')
    job = FioJob(path="/x", pattern=Pattern.WRITE, block_bytes=4096, seconds=1, size_bytes=1 << 20, verify=True)
    run_fio(job, program=fio)
    said = kept.read_text().split()
    assert {"--verify=crc32c", "--do_verify=1", f"--size={1 << 20}"} <= set(said)
    assert not {"--readonly", "--time_based"} & set(said)


def test_what_fio_says_is_said(tmp_path: Path) -> None:
    fio = program(tmp_path, "echo 'fio: pid=0, err=2/file:filesetup.c' >&2; exit 1")
    with pytest.raises(Unavailable, match=r"fio read on /dev/x: fio: pid=0, err=2"):
        run_fio(FioJob(path="/dev/x", pattern=Pattern.READ, block_bytes=4096, seconds=0.1), program=fio)


def test_without_fio_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        run_fio(FioJob(path="/x", pattern=Pattern.READ, block_bytes=4096, seconds=1), program=str(tmp_path / "none"))


def test_what_is_before_the_offset_stays(tmp_path: Path) -> None:
    kept = tmp_path / "arguments"
    fio = program(tmp_path, f'echo "$@" > {kept}; cat <<END\n{output()}\nEND')
    job = FioJob(path="/x", pattern=Pattern.WRITE, block_bytes=4096, seconds=1, offset_bytes=1 << 20)
    run_fio(job, program=fio)
    assert f"--offset={1 << 20}" in kept.read_text().split()


def test_it_is_asked_for_before_anything_is_done(tmp_path: Path) -> None:
    check_fio(program(tmp_path, "exit 0"))
    with pytest.raises(Unavailable, match="this machine does not have it; apt install fio"):
        check_fio(str(tmp_path / "none"))
