"""What a node says it has, and how busy it says it is."""

from __future__ import annotations

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.inventory import GpuSource, take_inventory
from farbus.api.authority import Credentials
from farbus.errors import InvalidInput, Unavailable
from farbus.linux.node_facts import FakeNodeFacts, NetworkLink
from farbus.linux.nvml import FakeNvml, Gpu, GpuList
from farbus.linux.sysfs import FakeSysfs, NvmeController, PciFunction
from farbus.model.device import DeviceKind
from farbus.model.node import Link

NETWORK = "network_mbit_s"
CONFIG = AgentConfig(
    name="n1",
    scheduler="head:7411",
    address="10.0.0.1",
    state="/s",
    socket="/s/agent.sock",
    credentials=Credentials(authority="a", certificate="c", key="k"),
)
GPU = Gpu(uuid="GPU-1", name="A GPU", memory_bytes=2**30, pci_address="0000:17:00.0", compute_capability="9.0")
FUNCTIONS = (
    PciFunction(address="0000:17:00.0", vendor=0x10DE, device=0x2330, pci_class=0x030200, driver="nvidia"),
    PciFunction(address="0000:18:00.0", vendor=0x1EC0, device=0x0001, pci_class=0x120000),
    PciFunction(address="0000:00:1f.0", vendor=0x8086, device=0x0001, pci_class=0x060100),
)
DRIVE = NvmeController(
    name="nvme0",
    serial="S1",
    model="A drive",
    transport="pcie",
    address="0000:19:00.0",
    subsystem_nqn="nqn.1",
    capacity_bytes=10**12,
)


def changed(**fields: object) -> AgentConfig:
    return AgentConfig(**{name: fields.get(name, getattr(CONFIG, name)) for name in CONFIG.__struct_fields__})


async def test_each_device_is_told_once_by_what_stays_the_same() -> None:
    fabric = NvmeController(**{**{f: getattr(DRIVE, f) for f in DRIVE.__struct_fields__}, "transport": "tcp"})
    found = await take_inventory(
        CONFIG,
        facts=FakeNodeFacts(),
        sysfs=FakeSysfs(FUNCTIONS, (DRIVE, fabric)),
        gpu_sources=[GpuSource(FakeNvml(GpuList(gpus=(GPU,))), False)],
    )
    assert [(device.kind, device.id) for device in found.node.devices] == [
        (DeviceKind.GPU, "GPU-1"),
        (DeviceKind.NVME, "NVME-S1-A_drive"),
        (DeviceKind.PCI, "PCI-0000:18:00.0"),
    ]
    assert found.node.capacity.cpu_milli == 4000
    assert found.troubles == ()


async def test_of_several_controllers_with_one_name_one_is_listed() -> None:
    # The ports of a drive that has two, or virtual functions of one; or two drives of a maker who numbers none.
    other = msgspec.structs.replace(DRIVE, name="nvme1", address="0000:1a:00.0")
    for controllers in ((DRIVE, other), (other, DRIVE)):
        found = await take_inventory(CONFIG, facts=FakeNodeFacts(), sysfs=FakeSysfs((), controllers), gpu_sources=[])
        assert [(one.id, one.pci_address) for one in found.node.devices] == [("NVME-S1-A_drive", DRIVE.address)]
        assert found.left_out == ("nvme1 at 0000:1a:00.0: nvme0 at 0000:19:00.0 is called NVME-S1-A_drive, too",)


async def test_a_drive_whose_name_separates_names_is_called_otherwise() -> None:
    # The scheduler refuses all of a node that reports a name with a comma.
    odd = msgspec.structs.replace(DRIVE, serial="S,1", model="A, drive")
    found = await take_inventory(CONFIG, facts=FakeNodeFacts(), sysfs=FakeSysfs((), (odd,)), gpu_sources=[])
    assert [one.id for one in found.node.devices] == ["NVME-S_1-A__drive"]


@pytest.mark.parametrize("setting", ["on", "off"])
async def test_whether_sessions_are_encrypted_is_told(setting: str) -> None:
    found = await take_inventory(
        changed(remoting_tls=setting), facts=FakeNodeFacts(), sysfs=FakeSysfs(), gpu_sources=[]
    )
    assert found.node.remoting_tls == setting


async def test_links_that_are_up_are_told() -> None:
    facts = FakeNodeFacts()
    facts.link_list = (
        NetworkLink(name="eth0", up=True, speed_mbit=25_000, receive_bytes=0, send_bytes=0),
        NetworkLink(name="eth1", up=False, speed_mbit=25_000, receive_bytes=0, send_bytes=0),
    )
    found = await take_inventory(CONFIG, facts=facts, sysfs=FakeSysfs(), gpu_sources=[])
    assert found.node.links == (Link(name="eth0", speed_mbit_s=25_000),)


@pytest.mark.parametrize(
    ("offered", "known", "told"),
    [
        (None, {"10.0.0.1": 25_000}, 25_000),
        (None, {"10.9.9.9": 1000}, 0),
        (5000, {"10.0.0.1": 25_000}, 5000),
        (0, {}, 0),
    ],
    ids=["of the link with the address", "unknown", "set", "set to nothing"],
)
async def test_the_network_of_a_node_is_that_of_the_link_with_its_address(
    offered: int | None, known: dict[str, int], told: int
) -> None:
    facts = FakeNodeFacts()
    facts.speeds = known
    found = await take_inventory(changed(network_mbit_s=offered), facts=facts, sysfs=FakeSysfs(), gpu_sources=[])
    assert found.node.capacity.network_mbit_s == told


async def test_a_driver_that_does_not_answer_is_a_trouble_and_hides_no_other() -> None:
    broken = FakeNvml()
    broken.trouble = Unavailable("NVML: Unknown Error")
    found = await take_inventory(
        changed(physical_devices=False),
        facts=FakeNodeFacts(),
        sysfs=FakeSysfs(FUNCTIONS, (DRIVE,)),
        gpu_sources=[GpuSource(broken, False), GpuSource(FakeNvml(GpuList(gpus=(GPU,))), True)],
    )
    assert [(device.id, device.software) for device in found.node.devices] == [("GPU-1", True)]
    assert found.troubles == ("NVML: Unknown Error",)


async def test_a_gpu_that_its_driver_can_not_describe_is_a_trouble_and_hides_no_other() -> None:
    found = await take_inventory(
        changed(physical_devices=False),
        facts=FakeNodeFacts(),
        sysfs=FakeSysfs(),
        gpu_sources=[
            GpuSource(FakeNvml(GpuList(gpus=(GPU,), troubles=("GPU at 0000:65:00.0: Unknown Error",))), False)
        ],
    )
    assert [device.id for device in found.node.devices] == ["GPU-1"]
    assert found.troubles == ("NVML: GPU at 0000:65:00.0: Unknown Error",)


async def inventory(nvml: FakeNvml, *, moved: tuple[str, ...] = ()) -> tuple[list[str], tuple[str, ...]]:
    """Return the devices that are listed where NVML says this, and what is said of others."""
    found = await take_inventory(
        CONFIG, facts=FakeNodeFacts(), sysfs=FakeSysfs(FUNCTIONS), gpu_sources=[GpuSource(nvml, False)], moved=moved
    )
    return [device.id for device in found.node.devices], (*found.troubles, *found.left_out)


@pytest.mark.parametrize("moved", [(), ("0000:17:00.0",)], ids=["of this node", "moved here"])
async def test_a_gpu_that_its_driver_does_not_tell_of_is_offered_as_nothing_else(moved: tuple[str, ...]) -> None:
    others = ["PCI-0000:18:00.0"]
    silent = FakeNvml()
    silent.trouble = Unavailable("NVML: let go of while a GPU is moved")
    assert await inventory(silent, moved=moved) == (others, ("NVML: let go of while a GPU is moved",))
    broken = FakeNvml(GpuList(troubles=("GPU at 0000:17:00.0: Unknown Error",)))
    assert await inventory(broken, moved=moved) == (others, ("NVML: GPU at 0000:17:00.0: Unknown Error",))
    for nvml in (FakeNvml(GpuList()), FakeNvml()):
        assert await inventory(nvml, moved=moved) == (
            others,
            ("GPU at 0000:17:00.0: its driver has it, and NVML does not tell of it; see nvidia-smi and dmesg",),
        )


async def test_software_gpus_that_are_not_there_are_a_trouble_and_real_ones_are_not() -> None:
    for software, troubles in ((True, ("software GPUs: NVML Shared Library Not Found",)), (False, ())):
        found = await take_inventory(
            CONFIG, facts=FakeNodeFacts(), sysfs=FakeSysfs(), gpu_sources=[GpuSource(FakeNvml(), software)]
        )
        assert found.troubles == troubles


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a/b"),
        ("scheduler", "head"),
        ("scheduler", "http://head:7411"),
        ("address", ""),
        ("address", "10.0.0.7:7412"),
        ("address", "http://node7"),
        ("socket", "/s" * 60),
        ("memory_bytes", -1),
        ("network_mbit_s", -1),
    ],
)
def test_a_setting_that_cannot_be_is_named(field: str, value: object) -> None:
    CONFIG.check()
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        changed(**{field: value}).check()


async def test_a_gpu_that_is_shared_is_told_in_equal_parts() -> None:
    other = Gpu(uuid="GPU-2", name="B GPU", memory_bytes=2**30, pci_address="0000:18:00.0")
    found = await take_inventory(
        changed(gpu_shares={"GPU-1": 3, "*gpu*": 2, "*": 4}, physical_devices=True),
        facts=FakeNodeFacts(),
        sysfs=FakeSysfs(FUNCTIONS),
        gpu_sources=[GpuSource(FakeNvml(GpuList(gpus=(GPU, other))), False)],
    )
    assert [(device.id, device.memory_bytes, device.share_milli) for device in found.node.devices] == [
        ("GPU-1/1", 2**30 // 3, 333),
        ("GPU-1/2", 2**30 // 3, 333),
        ("GPU-1/3", 2**30 // 3, 333),
        ("GPU-2/1", 2**29, 500),
        ("GPU-2/2", 2**29, 500),
    ]


@pytest.mark.parametrize("shares", [-1, 0, 1, 101])
def test_shares_that_can_not_be(shares: int) -> None:
    with pytest.raises(InvalidInput, match="gpu_shares: 'A\\*'"):
        changed(gpu_shares={"A*": shares}).check()


async def test_an_accelerator_has_the_name_that_it_has_anywhere_and_what_was_moved_here_is_told() -> None:
    plain = PciFunction(address="0000:20:00.0", vendor=0x1234, device=0x11E8, pci_class=0x00FF00)
    found = await take_inventory(
        CONFIG,
        facts=FakeNodeFacts(),
        sysfs=FakeSysfs((*FUNCTIONS, plain)),
        gpu_sources=[GpuSource(FakeNvml(GpuList(gpus=(GPU,))), False)],
        names=lambda _: {"0000:18:00.0": "PCI-1ec0:0001-00-01", "0000:20:00.0": "001400"},
        moved=("0000:20:00.0",),
    )
    assert [device.id for device in found.node.devices] == ["GPU-1", "PCI-1ec0:0001-00-01", "001400"]
