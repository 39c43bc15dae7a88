"""A QEMU that is none: its monitor, with devices that come and go as the fabric's back end asks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any


class FakeGuest:
    """Serves QMP at ``path``.

    ``lets_go`` says whether its system confirms a removal; ``silent`` that it answers nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.devices: dict[str, str] = {}
        self.drives: set[str] = set()
        self.asked: list[str] = []
        self.lets_go = True
        self.silent = False
        self.refuses = ""
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        """As when QEMU ends: nobody listens, and nothing is plugged into it."""
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()
        self._server = None
        self.devices.clear()
        self.drives.clear()

    def hang_up(self) -> None:
        """End all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self.silent:
                self._say(writer, {"QMP": {"version": {}, "capabilities": []}})
            while line := await reader.readline():
                if not self.silent:
                    self._take(writer, json.loads(line))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _say(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\r\n")

    def _take(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        command, arguments = message["execute"], message.get("arguments", {})
        self.asked.append(command)
        try:
            answer = getattr(self, f"_{command.replace('-', '_')}")(
                **{k.replace("-", "_"): v for k, v in arguments.items()}
            )
        except KeyError as error:
            kind = "DeviceNotFound" if command == "device_del" else "GenericError"
            self._say(writer, {"id": message["id"], "error": {"class": kind, "desc": str(error)}})
            return
        self._say(writer, {"id": message["id"], "return": answer})
        if command == "device_del" and self.lets_go:
            name = arguments["id"]
            del self.devices[name]
            self._say(writer, {"event": "DEVICE_DELETED", "data": {"device": name}})

    def _qmp_capabilities(self) -> dict[str, Any]:
        return {}

    def _qom_list(self, path: str) -> list[dict[str, str]]:
        return [{"name": name, "type": "child"} for name in ("type", "rp1", *self.devices)]

    def _qom_get(self, path: str, property: str) -> str:
        slot = self.devices[path.rpartition("/")[2]]
        return f"/machine/peripheral/{slot}/{slot}"

    def _device_add(self, driver: str, id: str, bus: str, **_: Any) -> dict[str, Any]:
        if self.refuses:
            raise KeyError(self.refuses)
        if id in self.devices or bus in self.devices.values():
            raise KeyError(f"duplicate {id} or used {bus}")
        self.devices[id] = bus
        return {}

    def _device_del(self, id: str) -> dict[str, Any]:
        if id not in self.devices:
            raise KeyError(id)
        return {}

    def _query_named_block_nodes(self, flat: bool) -> list[dict[str, str]]:
        return [{"node-name": name} for name in self.drives]

    def _blockdev_add(self, node_name: str, **_: Any) -> dict[str, Any]:
        if node_name in self.drives:
            raise KeyError("duplicate node")
        self.drives.add(node_name)
        return {}

    def _blockdev_del(self, node_name: str) -> dict[str, Any]:
        self.drives.remove(node_name)
        return {}
