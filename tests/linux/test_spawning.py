"""Processes that can't be started for want of descriptors cost none."""

from __future__ import annotations

import sys

from farbus.linux.children import run_tool

PROGRAM = """
import asyncio, os, resource, sys
import uvloop
from farbus.linux.spawning import spawn

PIPE = asyncio.subprocess.PIPE

async def start():
    child = await spawn(sys.executable, "-c", "", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    await child.communicate()

async def main():
    await start()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for left in range(24):
        before = os.listdir("/proc/self/fd")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + 64, most))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for _ in range(left):
            os.close(held.pop())
        try:
            await start()
            told = "started"
        except OSError as error:
            told = error.strerror
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        # What is closed is closed by the loop.
        await asyncio.sleep(0)
        print(told, len(os.listdir("/proc/self/fd")) - len(before))

uvloop.run(main())
"""


def test_a_start_that_finds_no_descriptors_loses_none() -> None:
    done = run_tool([sys.executable, "-c", PROGRAM])
    assert done.code == 0, done.stderr
    said = done.stdout.splitlines()
    assert set(said) == {"Too many open files 0", "started 0"}
    assert said[0] == "Too many open files 0"
    assert said[-1] == "started 0"
