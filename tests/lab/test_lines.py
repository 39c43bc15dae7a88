"""How the lab speaks with a guest and with its QEMU: lines of JSON over a socket."""

from __future__ import annotations

import json
import queue
import socket

from tests.lab.guest import Lines

LIMIT_S = 30.0


def nothing() -> None:
    """Where nobody asks for the end."""


def test_a_greeting_that_is_there_first_is_answered() -> None:
    ours, theirs = socket.socketpair()
    heard: queue.Queue[dict[str, object]] = queue.Queue()
    spoken: list[Lines] = []

    def answer(message: dict[str, object]) -> None:
        spoken[0].send({"execute": "qmp_capabilities"})
        heard.put(message)

    with theirs:
        theirs.settimeout(LIMIT_S)
        theirs.sendall(b'{"QMP": {}}\n')
        spoken.append(Lines(ours, answer, nothing))
        spoken[0].begin()
        assert json.loads(theirs.recv(1000)) == {"execute": "qmp_capabilities"}
        assert heard.get(timeout=LIMIT_S) == {"QMP": {}}
        spoken[0].close()
