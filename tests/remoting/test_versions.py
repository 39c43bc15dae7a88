"""Shims and servers of different versions: what both have works, what one lacks is refused by name.

specs/ holds what versions of the protocol had behind the hello, as recorded when they were current; a
new version adds a file, and no file ever changes.  1.0 was the first: what follows speaks of peers that
have its operations and say the hello of today, as a peer of an older minor version does.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farbus.remoting import session as wire
from farbus.remoting.codegen import marshal
from farbus.remoting.codegen import wire as codegen
from farbus.remoting.session import Server, write_session
from farbus.remoting.spec import ENTRIES, EVENTS, OPERATIONS
from tests.remoting.harness import BUILD, ROOT, Remote, hello, lines_of_shim, listening
from tests.remoting.record_spec import described, travelling
from tests.remoting.test_coverage import build_calls
from tests.remoting.test_failures import PATIENCE_S, wait_until
from tests.softgpu.driver_programs import COMPILER

Build = Callable[[str], Path]

SPECS = Path(__file__).parent / "specs"
CURRENT = f"{wire.PROTOCOL_MAJOR}.{wire.PROTOCOL_MINOR}"
HEADER = struct.Struct("<IHHQQ")
DEVICE_BYTES = 1392
#: Types of recorded fields, as struct has them; handles travel as u64.
TYPES = {"u32": "I", "i32": "i", "f32": "f"}
FIRST_CONTEXT = 1 << 43 | 1 << 4
LEGACY_STREAM = 1


def recorded(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SPECS / f"{version}.json").read_text())
    return loaded


@pytest.mark.parametrize("version", sorted(path.stem for path in SPECS.glob("*.json")))
def test_what_a_version_had_is_there_unchanged(version: str) -> None:
    spec = recorded(version)
    operations = {
        op.name: {
            "opcode": op.opcode,
            "answer": op.answer.value,
            "request": described(op.request),
            "reply": described(op.reply),
        }
        for op in OPERATIONS
    }
    events = {name: {"opcode": opcode, "fields": described(fields)} for opcode, name, fields, _, _ in EVENTS}
    numbers = {entry.symbol: entry.number for entry in ENTRIES}
    marshalled = {
        entry.symbol: (entry.parameters, travelling(entry.marshalled))
        for entry in ENTRIES
        if entry.marshalled is not None
    }
    assert {name: operations.get(name) for name in spec["operations"]} == spec["operations"]
    assert {name: events.get(name) for name in spec["events"]} == spec["events"]
    for symbol, function in spec["functions"].items():
        assert numbers.get(symbol) == function["number"], symbol
        if "directions" in function:
            assert marshalled[symbol] == (function["parameters"], travelling(function["directions"])), symbol


def test_the_current_version_is_recorded() -> None:
    assert CURRENT in {path.stem for path in SPECS.glob("*.json")}


@pytest.fixture
def remote(lease: Callable[..., Remote]) -> Remote:
    return lease(tls=False)


# A newer shim and an older server.


@pytest.fixture
def older_server(
    remote: Remote,
    libcuda: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """The session file leads to a server with the operations and the driver's functions that version 1.0, or the
    parameter's, had, over TCP, or, as "2.4 here", within this machine."""
    if not COMPILER:
        pytest.skip("no C compiler")
    version, _, here = getattr(request, "param", "1.0").partition(" ")
    spec = recorded(version)
    monkeypatch.setattr(codegen, "OPERATIONS", tuple(op for op in OPERATIONS if op.name in spec["operations"]))
    known = {symbol for symbol, function in spec["functions"].items() if "directions" in function}
    had = tuple(call for call in marshal.calls() if call.entry.symbol in known)
    monkeypatch.setattr(marshal, "calls", lambda: had)
    tables = [tmp_path / "wire_ops.c", tmp_path / "server_calls.c"]
    for table, text in zip(tables, (codegen.generate_wire_table(), marshal.generate_server_calls()), strict=True):
        table.write_text(text)
    # By their sources: of one that has been taken away the object may still lie there.
    objects = [
        (BUILD / "objects" / source.relative_to(ROOT / "native")).with_suffix(".o")
        for folder in ("wire", "transport", "server", "generated")
        for source in (ROOT / "native" / folder).rglob("*.c")
        if source.name not in {table.name for table in tables} and not source.name.startswith("client_")
    ]
    program = tmp_path / "older_server"
    subprocess.run(
        [
            *(COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/native", f"-I{ROOT}/native/generated"),
            "-Wno-unused-function",  # walks of what it does not know
            *("-o", program, Path(__file__).with_name("older_server.c"), *tables, *objects, "-pthread", "-ldl"),
        ],
        check=True,
    )
    secret = tmp_path / "secret"
    secret.write_bytes(remote.secret)
    path = [tmp_path / "socket"] if here else []
    with subprocess.Popen([program, secret, libcuda, *path], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            address, known_port = (str(path[0]), None) if path else ("127.0.0.1", port)
            write_session(remote.session, [Server(address=address, port=known_port, secret=remote.secret, tls=False)])
            yield
        finally:
            server.kill()


@pytest.mark.usefixtures("older_server")
@pytest.mark.parametrize("name", ["rows", "events", "handed_over", "streams_pinned"])
def test_a_shim_works_with_an_older_server(remote: Remote, build: Build, name: str) -> None:
    done = remote.run(build(f"remoting/{name}"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.usefixtures("older_server")
def test_what_an_older_server_lacks_is_an_error_of_its_own_and_is_named(remote: Remote, build: Build) -> None:
    done = remote.run(build("suite/graphs"), FARBUS_TRANSPORT="tcp")
    assert done.returncode != 0
    assert "not supported" in done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("farbus: ")]
    assert len(said) == len(set(said)) >= 1
    speaks = rf"it speaks remoting protocol \d+\.\d+, this shim {CURRENT}; "
    pattern = rf"farbus: the server at \S+ does not have \w+: {speaks}"
    assert all(re.match(pattern, line) for line in said), said


@pytest.mark.usefixtures("older_server")
def test_managed_memory_is_refused_where_the_server_does_not_tell_it_apart(remote: Remote, build: Build) -> None:
    done = remote.run(build("remoting/unmanaged/refused"), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
    assert re.fullmatch(
        r"farbus: managed memory is not supported over remoting by the server at \S+: it speaks remoting protocol "
        rf"\d+\.\d+, this shim {CURRENT}; install the same version of farbus on both nodes\n",
        done.stderr,
    )


@pytest.mark.usefixtures("older_server")
def test_where_multiprocessors_lie_is_not_known_of_an_older_server_and_nothing_said(
    remote: Remote, tmp_path: Path
) -> None:
    """cuBLASLt asks for it on every H100, and does without."""
    done = remote.run(build_calls("listing/layout", tmp_path), "2", "801", FARBUS_TRANSPORT="tcp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("older_server")
@pytest.mark.parametrize("older_server", ["2.2"], indirect=True)
def test_graphs_are_launched_at_a_server_that_lets_none_be_posted(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("call_graph_replays", tmp_path), FARBUS_TRANSPORT="tcp")
    assert (done.returncode, lines_of_shim(done.stderr)) == (0, [])


@pytest.mark.usefixtures("older_server")
@pytest.mark.parametrize("older_server", ["2.4"], indirect=True)
def test_a_server_that_knows_no_conditional_nodes_is_sent_none_and_named(remote: Remote, tmp_path: Path) -> None:
    done = remote.run(build_calls("conditions/older", tmp_path), FARBUS_TRANSPORT="tcp")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"farbus: the server at \S+ does not have cuGraphConditionalHandleCreate: it speaks remoting protocol "
        rf"\d+\.\d+, this shim {CURRENT}; install the same version of farbus on both nodes\n",
        done.stderr,
    )


@pytest.mark.usefixtures("older_server")
@pytest.mark.parametrize("older_server", ["2.5"], indirect=True)
def test_a_server_that_shares_nothing_by_descriptors_says_so_and_is_named(remote: Remote, tmp_path: Path) -> None:
    commands = "attribute 103\nattribute 119\nmake 2097152\ntold 0 10\nexport 0\nends\n"
    done = subprocess.run(
        [build_calls("descriptors/worker", tmp_path)],
        env=remote.environment(FARBUS_TRANSPORT="tcp"),
        input=commands,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split("\n") == ["0", "0", "0", "0", "error 801", "0", ""]
    assert re.fullmatch(
        r"farbus: the server at \S+ does not have descriptor_export: it speaks remoting protocol "
        rf"\d+\.\d+, this shim {CURRENT}; install the same version of farbus on both nodes\n",
        done.stderr,
    )


@pytest.mark.usefixtures("older_server")
@pytest.mark.parametrize("older_server", ["2.4 here"], indirect=True)
def test_pinned_memory_that_an_older_server_does_not_map_is_shared_for_copies(
    remote: Remote, build: Build, tmp_path: Path
) -> None:
    copied = remote.run(build("remoting/pinned_shared"), FARBUS_TRANSPORT="shm")
    assert (copied.returncode, copied.stdout, copied.stderr) == (0, "ok\n", "")
    used = remote.run(build_calls("listing/pinned_in_kernel", tmp_path), "pinned", FARBUS_TRANSPORT="shm")
    assert (used.returncode, used.stdout) == (0, "ok\n"), used.stderr
    (line,) = lines_of_shim(used.stderr)
    assert re.search(
        rf"the server at \S+ speaks remoting protocol \d+\.\d+, this shim {CURRENT}: with the same version of farbus "
        "on both sides kernels use it$",
        line,
    )


# An older shim and a newer server: what the recorded version says, byte by byte.


class OlderShim:
    """Speaks the recorded version, and nothing that came later."""

    def __init__(self, remote: Remote, version: str) -> None:
        self.operations = recorded(version)["operations"]
        self.sequence = 0
        self.connection = socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S)
        self.connection.sendall(hello(remote.secret))
        self.reply = wire.HELLO_REPLY.unpack(self.exactly(wire.HELLO_REPLY.size))

    def exactly(self, count: int) -> bytes:
        data = self.connection.recv(count, socket.MSG_WAITALL) if count else b""
        assert len(data) == count, "the server has closed the connection"
        return data

    @staticmethod
    def layout(fields: list[str]) -> str:
        """As struct reads it: every field at a multiple of its size, all of it a multiple of 8 bytes."""
        text, at = "<", 0
        for field in fields:
            kind, _, count = field.split()
            size = 4 if kind in TYPES else 8
            pad = -at % size
            text += f"{pad}x{count}{TYPES.get(kind, 'Q')}"
            at += pad + size * int(count)
        return f"{text}{-at % 8}x"

    def send(self, name: str, *values: int, tail: bytes = b"", context: int = FIRST_CONTEXT) -> None:
        op = self.operations[name]
        fixed = struct.pack(self.layout(op["request"]), *values)
        self.sequence += 1
        header = HEADER.pack(len(fixed) + len(tail), op["opcode"], 1, self.sequence, context)
        self.connection.sendall(header + fixed + tail)

    def receive(self) -> tuple[int, int, bytes]:
        length, opcode, _, _, result = HEADER.unpack(self.exactly(HEADER.size))
        return opcode, result, self.exactly(length)

    def call(self, name: str, *values: int) -> tuple[Any, ...]:
        self.send(name, *values)
        opcode, result, payload = self.receive()
        assert (opcode, result) == (self.operations[name]["opcode"] | 0x8000, 0)
        return struct.unpack(self.layout(self.operations[name]["reply"]), payload)


def test_an_older_shim_works_with_this_server(remote: Remote) -> None:
    shim = OlderShim(remote, "1.0")
    assert shim.reply[3] == wire.HELLO_OK
    assert shim.reply[5] == 0, "nothing was asked for"
    bits = int.from_bytes(shim.reply[11], "little")
    assert all(bits >> op["opcode"] & 1 for op in shim.operations.values())
    shim.exactly(shim.reply[9] * DEVICE_BYTES)
    shim.call("primary_retain", 0, 0, FIRST_CONTEXT)
    data = bytes(range(256)) * 16
    (address,) = shim.call("memory_alloc", len(data))
    shim.send("copy_to_device", address, LEGACY_STREAM, tail=data)
    shim.send("copy_to_host", address, len(data), len(data), 1, LEGACY_STREAM)
    opcode, _, payload = shim.receive()
    assert opcode == recorded("1.0")["events"]["data"]["opcode"]
    assert payload[16:] == data
    assert shim.receive()[:2] == (shim.operations["copy_to_host"]["opcode"] | 0x8000, 0)
    shim.call("memory_free", address)


def test_a_function_that_the_server_does_not_know_is_answered(remote: Remote) -> None:
    shim = OlderShim(remote, "2.1")
    shim.exactly(shim.reply[9] * DEVICE_BYTES)
    shim.call("primary_retain", 0, 0, FIRST_CONTEXT)
    for number in (4095, 1 << 20, (1 << 32) - 1):
        shim.send("call", number, *[0] * (len(shim.operations["call"]["request"]) - 1))
        assert shim.receive() == (shim.operations["call"]["opcode"] | 0x8000, 0x7FFFFFFF, b"")
    shim.call("memory_info")


# Versions that have nothing in common.


@pytest.mark.parametrize("major", [0, wire.PROTOCOL_MAJOR + 1, 99])
def test_a_shim_of_another_major_version_is_told_this_one(remote: Remote, major: int) -> None:
    with socket.create_connection(remote.supervisor.address, timeout=PATIENCE_S) as connection:
        connection.sendall(hello(remote.secret, major=major))
        reply = wire.HELLO_REPLY.unpack(connection.recv(wire.HELLO_REPLY.size, socket.MSG_WAITALL))
    assert reply[:4] == (wire.HELLO_MAGIC, wire.PROTOCOL_MAJOR, wire.PROTOCOL_MINOR, wire.HELLO_VERSION)
    # It logs once it has answered.
    line = f": protocol {major}.0, this is {CURRENT}"
    wait_until(lambda: any(each.endswith(line) for each in remote.lines), line)


def refuse(listener: socket.socket, times: int = 1) -> None:
    """Be a server of another major version, which hangs up at once."""
    for _ in range(times):
        connection, _ = listener.accept()
        with connection:
            connection.recv(wire.HELLO.size, socket.MSG_WAITALL)
            connection.sendall(
                wire.HELLO_REPLY.pack(wire.HELLO_MAGIC, 9, 3, wire.HELLO_VERSION, 7, 0, 0, 0, 0, 0, 0, b"")
            )


def test_a_server_of_another_major_version_is_refused_with_both(remote: Remote, build: Build) -> None:
    with listening(refuse) as (address, port):
        write_session(remote.session, [Server(address=address, port=port, secret=remote.secret, tls=False)])
        done = remote.run(build("remoting/events"), FARBUS_TRANSPORT="tcp")
    assert done.returncode == 1
    assert f"127.0.0.1:{port} speaks remoting protocol 9.3 and this shim {CURRENT}" in done.stderr


def test_so_is_one_of_this_node_that_has_gone_when_all_is_said(remote: Remote, build: Build, tmp_path: Path) -> None:
    """Again and again, as it is a race whether it has."""
    times, path = 10, str(tmp_path / "socket")
    write_session(remote.session, [Server(address=path, port=None, secret=remote.secret)])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=refuse, args=(listener, times))
        thread.start()
        said = [remote.run(build("remoting/events"), FARBUS_TRANSPORT="shm").stderr for _ in range(times)]
        thread.join()
    assert [line for line in said if f" speaks remoting protocol 9.3 and this shim {CURRENT}" not in line] == []
