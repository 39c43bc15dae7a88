"""The door to systemd's service notification (sd_notify(3)): one datagram per state."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Protocol

WATCHDOG_SHARE = 0.5
"""Part of WatchdogSec after which the next sign of life is due; systemd recommends half."""


def reloading() -> str:
    """Return the state that begins a reload, which ``READY=1`` ends (sd_notify(3)): with the time it is of."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


class Notifier(Protocol):
    """Tells the service manager how the service is."""

    def tell(self, state: str) -> None:
        """Send ``READY=1``, ``STATUS=...``, ``STOPPING=1`` or ``WATCHDOG=1``."""
        ...

    @property
    def watchdog_s(self) -> float:
        """Seconds between signs of life; 0 when none is asked for."""
        ...


class SystemdNotifier:
    """Speaks to the socket that the environment names; to nobody where there is none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit_us = environment.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(limit_us) / 1e6 * WATCHDOG_SHARE if mine and limit_us.isdigit() else 0.0

    @property
    def watchdog_s(self) -> float:
        """Seconds between signs of life."""
        return self._watchdog_s

    def tell(self, state: str) -> None:
        """Send one state; a service manager that does not listen is no reason to fail."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.connect(address)
                sender.send(state.encode())
            except OSError:
                return


class FakeNotifier:
    """Remembers what was told."""

    def __init__(self, *, watchdog_s: float = 0.0) -> None:
        self.told: list[str] = []
        self.watchdog_s = watchdog_s

    def tell(self, state: str) -> None:
        """Remember one state."""
        self.told.append(state)
