"""Tells the service manager how the scheduler is (sd_notify(3)): one datagram per state."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send ``READY=1``, ``STOPPING=1`` or ``WATCHDOG=1``; to nobody where no service manager listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, contextlib.suppress(OSError):
        sender.connect(address)
        sender.send(state.encode())


def watchdog_s() -> float:
    """Return the seconds between signs of life: half of WatchdogSec, or 0 for none."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit_us) / 2e6 if mine and limit_us.isdigit() else 0.0
