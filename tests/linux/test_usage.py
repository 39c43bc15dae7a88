"""What a process uses, seen from outside."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from farbus.errors import NotFound
from farbus.linux.limits import raise_descriptor_limit
from farbus.linux.usage import cpu_seconds, own_usage, usage_of, usage_of_children


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    script = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print('ready', flush=True)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_is_told_with_its_threads(child: subprocess.Popen[bytes]) -> None:
    used = usage_of(child.pid)
    assert used.pid == child.pid
    assert len(used.threads) == 2
    assert used.cpu_s > 0
    assert used.rss_bytes >= used.private_bytes > 0
    # The three streams.
    assert used.descriptors == 3


def test_one_that_ends_while_it_is_looked_at_is_told(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(_: psutil.Process) -> int:
        child.kill()
        child.wait()
        return 3

    monkeypatch.setattr(psutil.Process, "num_fds", ends)
    with pytest.raises(NotFound, match="it has ended"):
        usage_of(child.pid)


def test_children_that_have_ended_are_counted() -> None:
    before = own_usage().ended_children_cpu_s
    script = "import time\nwhile time.process_time() < 0.05: pass"
    subprocess.run([sys.executable, "-c", script], check=True)
    # In whole hundredths of a second, of user and system time apart.
    assert round(100 * (own_usage().ended_children_cpu_s - before)) >= 3


def test_processor_time_is_the_kernels_count() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(100_000))
    times = os.times()
    assert before < cpu_seconds(os.getpid())
    # In hundredths of a second, all of them rounded down.
    assert abs(cpu_seconds(os.getpid()) - (times.user + times.system)) < 0.2


def test_children_are_those_of_the_process(child: subprocess.Popen[bytes]) -> None:
    assert child.pid in [one.pid for one in usage_of_children(os.getpid())]
    assert usage_of_children(child.pid) == ()


def test_a_process_that_has_ended_is_not_found(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    with pytest.raises(NotFound, match=f"process {child.pid}"):
        usage_of(child.pid)


def test_descriptors_are_counted() -> None:
    before = own_usage().descriptors
    kept = os.open("/", os.O_RDONLY)
    assert own_usage().descriptors == before + 1
    os.close(kept)


def test_the_descriptor_limit_is_raised_as_far_as_allowed() -> None:
    script = (
        "import resource; from farbus.linux.limits import raise_descriptor_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256));"
        "print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["256", "256", "256"]
    assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
