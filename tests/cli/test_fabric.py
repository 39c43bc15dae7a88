"""``farbus fabric`` as programs: an emulator in a process of its own, killed and started anew."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farbus.cli.commands.fabric import EMULATOR_FILE
from farbus.cli.decoding import decode_file
from farbus.errors import InvalidInput
from farbus.hotplug.fabric.config import read_config
from farbus.hotplug.fabric.emulator.config import EmulatorConfig, check
from farbus.linux.tcp_ports import HeldPort

EMULATOR = """
seed = 3
speed = 0.0
credentials = "credentials"

[[chassis]]
name = "falcon"
h3 = "127.0.0.1:{h3}"
redfish = "127.0.0.1:{redfish}"

[[chassis.port]]
id = "30h"
node = "alpha"

[[chassis.port]]
id = "31h"
node = "beta"

[[chassis.device]]
id = "001300"
uuid = "GPU-1"
port = "30h"

[[chassis.device]]
id = "002300"
type = "NVME"
serial = "S2"
model = "drive"
"""

CLIENT = """
history = "{directory}/history"

[[chassis]]
name = "falcon"
dialect = "h3"
url = "{h3}"
ports = {{ 30h = "alpha", 31h = "beta" }}
devices.002300 = {{ serial = "S2" }}

[[chassis]]
name = "falcon-by-redfish"
dialect = "redfish"
url = "{redfish}"
ports = {{ 30h = "alpha", 31h = "beta" }}
certificate = "{directory}/state/redfish.crt"
credentials = "{directory}/credentials"
"""

FARBUS = (sys.executable, "-m", "farbus.cli", "fabric")


class Site:
    """An emulator's process, and the command line that speaks to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {"h3": "0", "redfish": "0"}
        credentials = directory / "credentials"
        credentials.write_text('user = "operator"\npassword = "secret"\n')
        credentials.chmod(0o600)
        self.start()

    def start(self) -> None:
        """Start it at the ports that it had; return once it is ready."""
        config = self.directory / "emulator.toml"
        config.write_text(EMULATOR.format(**self.ports))
        self.process = subprocess.Popen([*FARBUS, "emulate", "-c", config], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        urls = {}
        for line in self.process.stdout:
            if line == "ready\n":
                break
            _, dialect, _, url = line.removeprefix("chassis ").split(" ", 3)
            urls[dialect] = url.strip()
        self.ports = {dialect: url.rpartition(":")[2] for dialect, url in urls.items()}
        (self.directory / "fabric.toml").write_text(CLIENT.format(directory=self.directory, **urls))

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FARBUS_FABRIC": str(self.directory / "fabric.toml")}
        return subprocess.run(
            [*FARBUS, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=120
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("fabric"))
    yield site
    site.stop(signal.SIGTERM)


def test_devices_and_ports_are_listed(site: Site) -> None:
    done = site("list", "--chassis", "falcon")
    assert done.stdout.splitlines()[0].split() == ["DEVICE", "KIND", "MODEL", "CHASSIS", "PORT", "NODE", "STATE"]
    assert "S2" in done.stdout
    rows = json.loads(site("list", "-o", "json").stdout)
    assert {(row["chassis"], row["device"]["id"], row["device"]["kind"]) for row in rows} == {
        (chassis, device, kind)
        for chassis in ("falcon", "falcon-by-redfish")
        for device, kind in (("GPU-1", "gpu"), ("S2", "nvme"))
    }
    ports = json.loads(site("ports", "-o", "json", "--chassis", "falcon").stdout)
    assert [(row["port"]["id"], row["port"]["node"]) for row in ports] == [("30h", "alpha"), ("31h", "beta")]


def test_a_chassis_that_can_not_be_asked_hides_no_other(site: Site) -> None:
    credentials = site.directory / "credentials"
    credentials.chmod(0o644)
    try:
        listed, refused = site("list", "-q"), site("assign", "GPU-1", "alpha", "-q")
    finally:
        credentials.chmod(0o600)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["DEVICE", "GPU-1", "S2"]
    told = f"farbus: chassis falcon-by-redfish: credentials {credentials}: others can read or write it; chmod 600"
    for done in (listed, refused):
        assert (done.returncode, done.stderr.startswith(told)) == (5, True)


def test_a_device_is_assigned_moved_and_unassigned(site: Site) -> None:
    by_redfish = ("--chassis", "falcon-by-redfish")
    assert site("assign", "S2", "alpha", *by_redfish).stdout == "device S2 is assigned to port 30h\n"
    refused = site("assign", "S2", "beta", *by_redfish)
    assert refused.returncode == 7
    assert refused.stderr.startswith("farbus: chassis falcon-by-redfish: device S2 is at port 30h, not free for 31h")
    assert site("assign", "--move", "S2", "beta", *by_redfish).stdout == "device S2 is assigned to port 31h\n"
    freed = json.loads(site("unassign", "S2", "--from", "beta", "-o", "json", "--chassis", "falcon").stdout)
    assert (freed["id"], freed["port"]) == ("S2", "")
    history = json.loads((site.directory / "history" / "falcon-by-redfish.json").read_text())
    assert set(history["times"]) == {"list", "assign", "unassign"}


def test_state_survives_kill_9(site: Site) -> None:
    chosen = ("--chassis", "falcon")
    site("assign", "--move", "GPU-1", "beta", *chosen)
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL
    gone = site("list", *chosen, "-q")
    assert gone.returncode == 6
    assert gone.stderr.startswith("farbus: chassis falcon: can't be reached")
    site.start()
    (row,) = [row for row in json.loads(site("list", *chosen, "-o", "json").stdout) if row["device"]["id"] == "GPU-1"]
    assert row["device"]["port"] == "31h"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["list", "-c", "none.toml"], 3, "no such configuration file"),
        (["list", "--chassis", "other"], 3, "no chassis other; it has falcon"),
        (["assign", "GPU-9", "beta"], 3, "no device GPU-9 in falcon, falcon-by-redfish"),
        (["assign", "GPU-1", "gamma", "--chassis", "falcon"], 3, "no port gamma"),
        (["emulate", "-c", "none.toml"], 3, "no such configuration file"),
        (["list", "-c", "none.toml"], 3, "no such configuration file; name the one of your chassis with --config"),
        (["emulate", "-c", "none.toml", "--backend", "xen"], 2, "not one of none, qemu"),
        (["assign", "GPU-9", "beta"], 3, "falcon-by-redfish; farbus fabric list shows"),
    ],
)
def test_errors_are_one_line_with_their_code(site: Site, arguments: list[str], code: int, words: str) -> None:
    done = site(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr


def test_a_device_is_not_taken_from_a_port_where_it_is_not(site: Site) -> None:
    site("assign", "--move", "GPU-1", "beta", "--chassis", "falcon")
    done = site("unassign", "GPU-1", "--from", "alpha", "--chassis", "falcon")
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    assert "is assigned to port 31h, not 30h" in done.stderr


def test_an_emulator_of_guests_without_a_guest_is_refused(site: Site) -> None:
    done = site("emulate", "-c", str(site.directory / "emulator.toml"), "--backend", "qemu")
    assert done.returncode == 2
    assert "--backend qemu: no port has a guest; give one qmp =" in done.stderr


@pytest.fixture
def one_is_away(site: Site, held_port: HeldPort) -> Path:
    """A file of the site's chassis and of another one, at whose port nobody listens."""
    text = (site.directory / "fabric.toml").read_text()
    config = site.directory / "away.toml"
    away = f"http://127.0.0.1:{held_port.number}"
    config.write_text(f'{text}\n[[chassis]]\nname = "away"\ndialect = "h3"\nurl = "{away}"\n')
    return config


def test_a_chassis_that_is_away_hides_no_other(site: Site, one_is_away: Path) -> None:
    done = site("list", "-q", "-o", "json", "-c", str(one_is_away))
    assert {row["chassis"] for row in json.loads(done.stdout)} == {"falcon", "falcon-by-redfish"}
    assert done.returncode == 6
    assert done.stderr.startswith("farbus: chassis away: can't be reached")
    done = site("ports", "-q", "-o", "json", "-c", str(one_is_away), "--chassis", "away")
    assert (done.returncode, done.stdout) == (6, "")


def test_a_chassis_that_is_away_is_passed_over_by_naming_the_one_that_has_the_device(
    site: Site, one_is_away: Path
) -> None:
    done = site("unassign", "GPU-1", "-q", "-c", str(one_is_away))
    assert done.returncode == 6
    assert done.stderr.startswith("farbus: chassis away: can't be reached")
    assert done.stderr.endswith("; --chassis NAME asks only the one that has GPU-1\n")


def test_hints_name_the_configuration_that_was_asked(site: Site) -> None:
    config = site.directory / "other.toml"
    config.write_text((site.directory / "fabric.toml").read_text())
    done = site("assign", "GPU-9", "beta", "-c", str(config))
    assert f"; farbus fabric list -c {config} shows what there is" in done.stderr
    done = site("unassign", "GPU-1", "--from", "gamma", "-c", str(config), "--chassis", "falcon")
    assert f"; farbus fabric ports -c {config} shows what there is" in done.stderr


def test_without_a_cluster_the_other_way_is_told(tmp_path: Path) -> None:
    environment = {**os.environ, "FARBUS_SOCKET": str(tmp_path / "none.sock"), "FARBUS_FABRIC": ""}
    done = subprocess.run([*FARBUS, "list"], capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 6
    assert done.stderr.endswith("; or ask the chassis themselves with --config FILE\n")


def test_what_speaks_tls_alone_is_asked_for_https(site: Site) -> None:
    config = site.directory / "plain.toml"
    port = site.ports["redfish"]
    config.write_text(f'[[chassis]]\nname = "pod"\ndialect = "redfish"\nurl = "http://127.0.0.1:{port}"\n')
    done = site("list", "-q", "-c", str(config))
    assert done.returncode == 6
    assert done.stderr.endswith("does it want an https:// url?\n")


def test_ctrl_c_says_that_half_of_it_may_be_done(tmp_path: Path) -> None:
    config = tmp_path / "fabric.toml"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config.write_text(f'[[chassis]]\nname = "falcon"\ndialect = "h3"\nurl = "{url}"\nports = {{30h = "alpha"}}\n')
        command = [*FARBUS, "assign", "S2", "alpha", "-c", str(config)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            # It asks now, and is never answered.
            accepted, _ = silent.accept()
            with accepted:
                accepted.recv(1)
                process.send_signal(signal.SIGINT)
                _, said = process.communicate()
    assert process.returncode == 130
    assert said == (
        "assigning S2 to alpha: no longer watched, and half of it may be done; "
        f"farbus fabric list -c {config} shows where S2 is\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "e.toml: chassis: missing"),
        ('chassis = [{name = "a", device = [{id = "1", typ = "NVME"}]}]', r"device\[0\].typ: .*; did you mean type?"),
        ('chassis = [{name = "a", ports = []}]', "did you mean port?"),
        ('chassis = [{name = "a", faults = {false-negativ = 1}}]', "did you mean false-negative?"),
        ('chassis = [{name = "a", fault = [{kind = "late"}]}]', "unknown value 'late'; allowed: eof, error"),
    ],
)
def test_errors_in_files_name_fields_as_files_do(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        decode_file(text.encode(), EmulatorConfig, name="e.toml")


def test_the_files_to_try_it_with_are_right_and_fit_each_other(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "fabric.md").read_text()
    part = page.partition("## To try it")[2].partition("\n## ")[0]
    texts = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", part, re.DOTALL))
    emulated = decode_file(texts["emulator.toml"].encode(), EmulatorConfig, name="emulator.toml")
    check(emulated, name="emulator.toml")
    file = tmp_path / "fabric.toml"
    file.write_text(texts["fabric.toml"])
    asked = read_config(str(file))
    for chassis, access in zip(emulated.chassis, asked.chassis, strict=True):
        assert access.name == chassis.name
        assert access.url.rpartition("//")[2] == chassis.h3 + chassis.redfish
        assert access.ports == {port.id: port.node for port in chassis.ports}


def test_the_file_in_the_help_is_one() -> None:
    config = decode_file("\n".join(EMULATOR_FILE).encode(), EmulatorConfig, name="help.toml")
    check(config, name="help.toml")
    shown = subprocess.run([*FARBUS, "emulate", "--help"], capture_output=True, text=True, check=True).stdout
    assert "\n".join(f"    {line}" for line in EMULATOR_FILE) in shown


def test_the_replay_is_printed_with_its_counts() -> None:
    done = subprocess.run([*FARBUS, "replay", "-o", "json"], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert (len(result["reconfigurations"]), result["late_by_learned"], result["failed"]) == (53, 0, 0)
