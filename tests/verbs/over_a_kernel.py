"""The peer of :mod:`tests.verbs.peer` as a program that a job runs: over a kernel's RDMA device, by pyverbs.

It finds its server in FARBUS_SESSION, and says for each case that it is so.  Reads and sends are here, which the tests'
own device has not.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from tests.verbs.peer import RING_BYTES, Broken, Client, Door, Opcode, Rings, gid_of
from tests.verbs.pyverbs_door import PyverbsDoor

DATA_BYTES = RING_BYTES + 54321
"""More than a ring, in each direction."""


def session_of(path: Path) -> tuple[tuple[str, int], bytes]:
    """Return address and secret of the first server of a session file, which is to be without TLS."""
    words = dict(line.split(" ", 1) for line in path.read_text().splitlines()[1:])
    kind, host, port = words["server"].split()
    assert kind == "tcp", f"this peer knows no {kind}"
    assert words["rdma"] == "on"
    return (host, int(port)), bytes.fromhex(words["secret"])


def begin(address: tuple[str, int], secret: bytes, door: Door) -> Client:
    client = Client(address, secret, door)
    client.begin()
    client.open_context()
    return client


def rings_of(client: Client) -> Rings:
    assert client.rings
    return client.rings


def computes(client: Client, _: Client) -> None:
    data = random.Random(7).randbytes(DATA_BYTES)
    address = client.allocate(len(data))
    client.to_device(address, data)
    assert client.to_host(address, len(data)) == data
    for rdma in (False, True):
        before = rings_of(client)
        client.connection.close()
        client.dial_and_resume(rdma=rdma)
        if rdma:
            before.close()
        client.to_device(address, data[:5000][::-1])
        assert client.to_host(address, 5000) == data[:5000][::-1]


def refused(client: Client, post: Callable[[Rings], None]) -> None:
    """The device at the other side refuses that, and the session goes on over TCP."""
    rings = rings_of(client)
    post(rings)
    try:
        rings.flush()
    except Broken:
        client.dial_and_resume()
        assert client.works()
    else:
        raise AssertionError("it has let it pass")


def behind_its_ring(client: Client, _: Client) -> None:
    def post(rings: Rings) -> None:
        assert rings.theirs
        rings.write(0, 8, to=rings.theirs.ring + RING_BYTES)

    refused(client, post)


def with_another_key(client: Client, _: Client) -> None:
    def post(rings: Rings) -> None:
        assert rings.theirs
        rings.write(0, 8, to=rings.theirs.ring, key=rings.theirs.key ^ 0x100)

    refused(client, post)


def into_another_s_ring(client: Client, other: Client) -> None:
    theirs = rings_of(other).theirs
    assert theirs
    refused(client, lambda rings: rings.write(0, 8, to=theirs.ring, key=theirs.key))


def reads_its_ring(client: Client, _: Client) -> None:
    def post(rings: Rings) -> None:
        assert rings.theirs
        to, key = rings.theirs.ring, rings.theirs.key
        rings.writer.post(Opcode.READ, rings.memory, RING_BYTES, 8, to=to, key=key, immediate=0)
        rings.under_way += 1

    refused(client, post)


def sends_more_than_nothing(client: Client, _: Client) -> None:
    def post(rings: Rings) -> None:
        rings.writer.post(Opcode.SEND, rings.memory, RING_BYTES, 8, to=0, key=0, immediate=0)
        rings.under_way += 1

    refused(client, post)


def ends(client: Client) -> None:
    with contextlib.suppress(Broken, ConnectionError):
        while client.receive():
            pass
    with contextlib.suppress(Broken, ConnectionError):
        assert client.dial() is None


def sends_nothing(client: Client, _: Client) -> None:
    rings_of(client).writer.post(Opcode.SEND, None, 0, 0, to=0, key=0, immediate=0)
    ends(client)


def says_a_length_that_can_t_be(client: Client, _: Client) -> None:
    rings_of(client).message(8, counts=RING_BYTES + 1)
    ends(client)


def says_what_can_t_have_been_taken(client: Client, _: Client) -> None:
    rings_of(client).credit(1 << 9, 1 << 21)
    ends(client)


def falls_silent_in_the_midst_of_agreeing(client: Client, _: Client) -> None:
    before = rings_of(client)
    assert client.dial(rdma=True) is not None
    client.dial_and_resume(rdma=True)
    before.close()
    assert client.works()


CASES = (
    computes,
    behind_its_ring,
    with_another_key,
    into_another_s_ring,
    reads_its_ring,
    sends_more_than_nothing,
    sends_nothing,
    says_a_length_that_can_t_be,
    says_what_can_t_have_been_taken,
    falls_silent_in_the_midst_of_agreeing,
)


def main() -> None:
    address, secret = session_of(Path(os.environ["FARBUS_SESSION"]))
    with socket.create_connection(address) as connection:
        own = connection.getsockname()[0]
    door = PyverbsDoor(gid_of(own))
    other = begin(address, secret, door)
    for case in CASES:
        client = begin(address, secret, door)
        try:
            case(client, other)
            assert other.works(), "another session has noticed"
        except Exception as error:
            print(f"{case.__name__}: {error!r}", flush=True)
            raise
        finally:
            client.end()
            client.close()
        print(f"{case.__name__}: ok", flush=True)
    other.end()
    print("all ok", flush=True)


if __name__ == "__main__":
    sys.exit(main())
