"""Container engines for tests: podman as it is installed, Docker with a daemon of the test's own.

Docker finds devices by CDI since 25.  ``python -m tests.end_to_end.engines`` fetches a newer Debian's, unpacked to
``$XDG_CACHE_HOME/farbus/docker`` and not installed, and as root installs what else is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.image import LabError, install_missing

SPECIFICATIONS = Path("/run/cdi")
"""The one directory that every engine looks into, and the agent cleans."""

OLDEST_DOCKER = 25

SUITE = "trixie"
PACKAGES = ("docker.io", "docker-cli", "containerd", "tini")
"""What is fetched; runc of any age does."""

COMMANDS = {
    "podman": "podman",
    "crun": "crun",
    "runc": "runc",
    "catatonit": "catatonit",  # podman's --init
    "musl-gcc": "musl-tools",
}
"""What else starts containers or compiles programs for them, and the package of Debian and Ubuntu that brings it."""

FETCH_LIMIT_S = 300
START_LIMIT_S = 60
LIMIT_S = 60

APT = """
Dir::State "{place}/state";
Dir::State::status "{place}/status";
Dir::Cache "{place}/cache";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "-";
"""
"""Settings of an apt that knows another Debian, and nothing of what is installed."""

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Engine(NamedTuple):
    """How a command of a shell starts a container."""

    name: str
    command: list[str]
    """What the engine's subcommands go after."""
    options: list[str]
    """What every ``run`` has here, beside a network."""
    image: list[str]
    """Names the root file system that the container has."""

    def run(self, *arguments: str, network: str = "host") -> str:
        """Return the beginning of a shell's command that runs a container; ``arguments`` are more options."""
        return " ".join([*self.command, "run", f"--network={network}", *self.options, *arguments, *self.image])

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the engine's commands to its end."""
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def trouble(self, *options: str) -> str:
        """Return why no container can be started with these options; empty where one can."""
        done = self.ask("run", "--rm", "--network=host", *self.options, *options, *self.image, "/program", "--help")
        # 125: the engine's own error; 126 and 127: the runtime's.
        return done.stderr.strip() if done.returncode >= 125 else ""


@contextlib.contextmanager
def podman(root: Path, *options: str) -> Iterator[Engine]:
    """Yield podman, which takes a directory for an image; skip the test where it starts no container."""
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("needs podman, and root")
    said = []
    for runtime in ("crun", "runc"):
        # Podman's own limits are more than a machine may allow.
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        engine = Engine(
            name="podman",
            command=["podman", "--runtime", runtime],
            options=[*limits, *options],
            image=["--rootfs", str(root)],
        )
        trouble = engine.trouble()
        if not trouble:
            yield engine
            return
        said.append(trouble)
    pytest.skip(f"podman starts no container here: {said}")


@contextlib.contextmanager
def docker(root: Path, *options: str) -> Iterator[Engine]:
    """Yield Docker with a daemon of its own; skip the test where it can't be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a Docker daemon")
    path = os.pathsep.join([str(docker_directory()), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    daemon = shutil.which("dockerd", path=path)
    if daemon is None or _version(daemon) < OLDEST_DOCKER:
        pytest.skip(f"needs a dockerd of {OLDEST_DOCKER} or later: make check-containers fetches one")
    if not shutil.which("runc", path=path):
        pytest.skip("needs runc, for Docker")
    # Short: the paths of its sockets have an end.
    with tempfile.TemporaryDirectory(prefix="docker.") as place, _daemon(daemon, Path(place), path=path) as address:
        client = shutil.which("docker", path=path) or "docker"
        command = [client, "--config", place, "--host", address]
        archive = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            [*command, "import", "-", "root"], stdin=archive.stdout, capture_output=True, timeout=LIMIT_S, check=True
        )
        assert archive.wait() == 0
        engine = Engine(name="docker", command=command, options=list(options), image=["root"])
        trouble = engine.trouble()
        if trouble:
            pytest.skip(f"Docker starts no container here: {trouble}")
        yield engine


def _version(daemon: str) -> int:
    """Return the major version of a dockerd; 0 where it does not run here."""
    told = subprocess.run([daemon, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout
    found = re.search(r"version (\d+)\.", told)
    return int(found[1]) if found else 0


@contextlib.contextmanager
def _daemon(program: str, place: Path, *, path: str) -> Iterator[str]:
    """Run a Docker daemon that has all that is its in ``place``; yield the address that it listens on."""
    address = f"unix://{place}/socket"
    (place / "daemon.json").write_text(json.dumps({"features": {"cdi": True}, "cdi-spec-dirs": [str(SPECIFICATIONS)]}))
    # It ends with the test, and what it leaves mounted with it.
    command = ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", program]
    command += ["--config-file", place / "daemon.json", "--host", address, "--pidfile", place / "pid"]
    command += ["--data-root", place / "data", "--exec-root", place / "exec"]
    # Containers have the machine's own network, or none: no firewall is touched.
    command += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, (place / "log").open("w") as log:
        ready.bind(str(place / "notify"))
        ready.settimeout(START_LIMIT_S)
        environment = {**os.environ, "PATH": path, "NOTIFY_SOCKET": str(place / "notify")}
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            try:
                while b"READY=1" not in ready.recv(4096):
                    pass
            except TimeoutError:
                told = (place / "log").read_text().splitlines()
                pytest.skip(f"dockerd does not start here: {told[-3:]}")
            yield address
        finally:
            daemon.terminate()
            daemon.wait(START_LIMIT_S)


def docker_directory() -> Path:
    """Return where the programs of a fetched Docker are, or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "farbus" / "docker" / SUITE


def fetch_docker() -> None:
    """Fetch Docker's programs from Debian's mirror, in 65 MB; one that is there is left alone.

    Raises :class:`SystemExit` with what to do where this is no Debian, or apt fails.
    """
    target = docker_directory()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching.") as name:
        place = Path(name)
        targets = _apt("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", cwd=place)
        mirrors = re.findall(r"^Debian Debian (\S+)$", targets, re.MULTILINE)
        if not mirrors or not os.path.exists(KEYS):
            sys.exit(f"Docker is fetched on Debian alone; install a dockerd of {OLDEST_DOCKER} or later")
        (place / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirrors[0]} {SUITE} main\n")
        (place / "apt.conf").write_text(APT.replace("{place}", name))
        (place / "status").touch()
        (place / "cache/archives/partial").mkdir(parents=True)
        (place / "state/lists/partial").mkdir(parents=True)
        # Below this directory apt's own user may see nothing.
        own = ("-o", "APT::Sandbox::User=")
        _apt("apt-get", *own, "update", cwd=place)
        _apt("apt-get", *own, "download", *PACKAGES, cwd=place)
        for package in place.glob("*.deb"):
            _apt("dpkg-deb", "-x", str(package), "tree", cwd=place)
        programs = place / "programs"
        programs.mkdir()
        for directory in ("usr/bin", "usr/sbin"):
            for program in (place / "tree" / directory).iterdir():
                shutil.move(program, programs)
        programs.rename(target)


def _apt(*command: str, cwd: Path) -> str:
    """Run a command of apt's or dpkg's with the settings in ``cwd``, where they are there; return its output."""
    environment = {**os.environ, **({"APT_CONFIG": str(cwd / "apt.conf")} if (cwd / "apt.conf").exists() else {})}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False
        )
    except FileNotFoundError:
        sys.exit(f"Docker is fetched by apt; install a dockerd of {OLDEST_DOCKER} or later")
    if done.returncode:
        sys.exit(f"{' '.join(command)} ends with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        install_missing(COMMANDS, for_what="containers")
    except LabError as error:
        sys.exit(str(error))
    fetch_docker()
    print(docker_directory())
