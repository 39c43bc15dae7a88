"""What ``farbus doctor`` says of RDMA, from a sysfs as kernels have it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from farbus.cli.findings import Verdict
from farbus.cli.node_settings import NodeSettings, node_settings
from farbus.cli.rdma_diagnosis import examine_rdma
from farbus.linux.rdma import lockable_bytes

ON = NodeSettings(remoting_rdma="on")
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def device(
    root: Path, name: str = "mlx5_0", *, gids: dict[str, str], state: str = "4: ACTIVE", mode: int = 0o666
) -> None:
    place = root / "sys/class/infiniband" / name
    port = place / "ports/1"
    for folder in (port / "gids", port / "gid_attrs/types", place / "device/infiniband_verbs/uverbs0"):
        folder.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    for number, (gid, kind) in enumerate({**gids, EMPTY: ""}.items()):
        (port / "gids" / str(number)).write_text(f"{gid}\n")
        if kind:
            (port / "gid_attrs/types" / str(number)).write_text(f"{kind}\n")
    node = root / "dev/infiniband/uverbs0"
    node.parent.mkdir(parents=True, exist_ok=True)
    node.touch()
    node.chmod(mode)


GIDS = {
    "fe80:0000:0000:0000:0202:c9ff:fe00:0001": "RoCE v2",
    "0000:0000:0000:0000:0000:ffff:0a01:0007": "RoCE v2",
    "0000:0000:0000:0000:0000:ffff:0a01:0008": "IB/RoCE v1",
    "fd00:0000:0000:0000:0000:0000:0000:0007": "RoCE v2",
}


def lines(
    root: Path, settings: NodeSettings = ON, *, library: bool = True, lockable: int | None = None
) -> list[tuple[Verdict, str]]:
    def loads(_: str) -> None:
        if not library:
            raise OSError

    found = examine_rdma(settings, root=str(root), loads=loads, lockable=lambda: lockable)
    return [(each.verdict, each.found) for each in found]


def test_nothing_is_said_where_it_is_off(tmp_path: Path) -> None:
    assert lines(tmp_path, NodeSettings(), library=False) == []


def test_what_there_is(tmp_path: Path) -> None:
    device(tmp_path, gids=GIDS)
    assert lines(tmp_path) == [(Verdict.OK, "sessions may go by RDMA: mlx5_0 has 10.1.0.7, fd00::7")]


@pytest.mark.parametrize("address", ["10.1.0.7", "fd00:0::7", "node7.example.org", ""])
def test_an_address_of_a_device_or_a_name_is_right(tmp_path: Path, address: str) -> None:
    device(tmp_path, gids=GIDS)
    assert [verdict for verdict, _ in lines(tmp_path, NodeSettings(remoting_rdma="on", address=address))] == [
        Verdict.OK
    ]


def test_an_address_of_no_device(tmp_path: Path) -> None:
    device(tmp_path, gids=GIDS)
    warning, _ = lines(tmp_path, NodeSettings(remoting_rdma="on", address="192.0.2.1"))
    assert warning == (
        Verdict.WARNING,
        "the agent's address 192.0.2.1 is of no RDMA device: programs of other nodes come by TCP",
    )


def test_no_library_and_no_device(tmp_path: Path) -> None:
    assert [found for _, found in lines(tmp_path, library=False)] == [
        "remoting_rdma is on, and there is no libibverbs.so.1",
        "remoting_rdma is on, and this machine has no RDMA device",
    ]


@pytest.mark.parametrize(("gids", "state"), [({}, "4: ACTIVE"), (GIDS, "1: DOWN")])
def test_a_device_without_an_address(tmp_path: Path, gids: dict[str, str], state: str) -> None:
    device(tmp_path, gids=gids, state=state)
    assert lines(tmp_path) == [(Verdict.WARNING, "mlx5_0: no active port with an address of RoCE v2")]


def test_a_device_that_users_can_t_open(tmp_path: Path) -> None:
    device(tmp_path, gids=GIDS, mode=0o600)
    (verdict, found), _ = lines(tmp_path)
    assert verdict is Verdict.WARNING
    assert found == f"{tmp_path}/dev/infiniband/uverbs0: programs and remoting servers can't open it"


@pytest.mark.parametrize("lockable", [6 << 20, 8 << 20, None])
def test_as_much_memory_as_a_session_locks(tmp_path: Path, lockable: int | None) -> None:
    device(tmp_path, gids=GIDS)
    assert [verdict for verdict, _ in lines(tmp_path, lockable=lockable)] == [Verdict.OK]


@pytest.mark.parametrize(("lockable", "told"), [(5 << 20, "5 MiB"), (64 << 10, "64 KiB"), (0, "0 B")])
def test_less_memory_than_a_session_locks(tmp_path: Path, lockable: int, told: str) -> None:
    device(tmp_path, gids=GIDS)
    warning, _ = lines(tmp_path, lockable=lockable)
    assert warning == (
        Verdict.WARNING,
        f"programs that are started here may lock {told} of memory, and a session takes 6 MiB to go by RDMA and to "
        "stay there behind a cut",
    )


def test_what_may_be_locked_is_this_process_s_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, before[1]))
    try:
        assert lockable_bytes() == 4096
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def test_the_agent_s_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('name = "n1"\naddress = "10.1.0.7"\nremoting_rdma = "on"\n')
    settings = node_settings(str(file))
    assert (settings.remoting_rdma, settings.address) == ("on", "10.1.0.7")
