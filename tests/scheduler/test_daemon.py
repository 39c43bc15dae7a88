"""What a scheduler does all the time goes on, whatever it meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farbus.api.authority import Credentials
from farbus.scheduler.config import SchedulerConfig
from farbus.scheduler.contents import Contents
from farbus.scheduler.daemon import keep_credentials
from tests.scheduler.staging_site import Site, serve_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serve_site(tmp_path) as served:
        yield served


async def until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Wait for an event that ``work`` brings about, unless that ends before."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    happened = event.is_set()
    for task in (working, waiting):
        task.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
    assert happened


async def test_revocations_are_passed_on_where_a_renewal_meets_what_nobody_thought_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Credentials) -> bool:
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr("farbus.scheduler.daemon.CREDENTIALS_INTERVAL_S", 0.0)
    passed_on = asyncio.Event()
    config = SchedulerConfig(
        listen="127.0.0.1:0", state="state", credentials=Credentials(authority="", certificate="", key="")
    )
    issuer: Any = SimpleNamespace(renew_own=fail)
    trust: Any = SimpleNamespace(refresh=lambda: False)
    sessions: Any = SimpleNamespace(pass_on_trust=passed_on.set)
    await until(passed_on, keep_credentials(config, issuer, trust, sessions))


async def test_files_are_looked_through_again_where_a_look_meets_what_nobody_thought_of(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, again = 0, asyncio.Event()

    async def look(*_: object, **__: object) -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ValueError("nobody thought of it")
        again.set()
        return 0

    monkeypatch.setattr("farbus.scheduler.staging.SWEEP_INTERVAL_S", 0.0)
    monkeypatch.setattr(Contents, "sweep", look)
    await until(again, site.service.keep_sweeping())
