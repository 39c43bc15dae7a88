"""The door to TCP ports that are told before anybody listens there."""

from __future__ import annotations

import socket


class HeldPort:
    """A port of the loopback interface that nobody else gets, until it is closed.

    Who is told its ``number`` can listen there, again and again, with SO_REUSEADDR, as servers do (socket(7)): the
    socket that holds it does not listen.  Nobody is given it who asks for any port, and no connection that begins here.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", 0))
        except BaseException:
            self._socket.close()
            raise
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Let others have it."""
        self._socket.close()
