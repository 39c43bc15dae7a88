"""Containers of podman and of Docker: a CUDA program in one, which knows nothing of Farbus, uses the GPU of another
machine by CDI.

``a`` has the scheduler, the engines and no GPU; ``b`` has software GPUs.  The container's image has the programs and
the guest's own libraries: no registry is there to be asked.
"""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from farbus.cli.toolchain import find_toolchain
from farbus.errors import NotFound
from tests.lab.cluster import JOB_LIMIT_S, SCALED, STATE, TO_SCALE, farbus
from tests.lab.guest import BOOT_ID, Guest, Result, patient
from tests.lab.nodes import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("scale_file", "stay")
USERS = ("root", "alice")
ENGINES = {"podman": "podman run --rm", "docker": 'docker run --rm --user "$(id -u)"'}
"""How each starts a container as the user: Docker's daemon is root, and so are its containers unless told."""

NETWORKS = {"host": "--network host", "own": ""}
"""An engine's own choice is a network of the container's: slirp4netns for podman without root, else a bridge."""

IMAGE = "localhost/cuda"
PLAIN_IMAGE = "localhost/no-ssl"

MAKE_IMAGES = """
root=$(mktemp -d)
mkdir $root/proc $root/sys $root/dev $root/run $root/etc $root/tmp
cd /usr/local/bin && cp {programs} $root/
put_in() { # what these files are linked to
    for library in $(ldd "$@" | sed -n 's/.*[[:space:]]\\(\\/[^ ]*\\) (0x.*/\\1/p' | sort -u); do
        cp --parents --dereference $library $root
    done
}
put_in {programs} $(find /opt/farbus -name libcuda.so.1)
tar -cf /var/tmp/no-ssl.tar -C $root .
ssl=$(ldconfig -p | sed -n 's/.*libssl.so.3 .*=> //p')
cp --parents --dereference $ssl $root
put_in $ssl
tar -cf /var/tmp/cuda.tar -C $root .
rm -r $root
"""

SCALE = "/scale_file /data/in /data/out 3"
STAY = "/stay /data/enough 200"


class Pair(NamedTuple):
    """The two machines."""

    a: Guest
    b: Guest


@pytest.fixture(scope="module")
def pair(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("containers")
    for name in PROGRAMS:
        try:
            find_toolchain().compile(ROOT / f"tests/programs/cluster/{name}.cu", directory / name)
        except NotFound:
            pytest.skip("needs nvcc for a CUDA program")
    a, b = lab.cluster("a", "b", gpus={"b": 2})
    for guest in (a, b):
        # An agent that gets no turn beside podman, on a crowded machine, does not hang.
        guest.run("systemctl", "service-watchdogs", "no")
    # A user's container may have a /proc only where he sees all of the machine's, which the lab has covered in part.
    a.shell(f"while grep -q {BOOT_ID} /proc/mounts; do umount {BOOT_ID}; done")
    for name in PROGRAMS:
        a.copy_in(directory / name, f"/usr/local/bin/{name}")
    a.shell(MAKE_IMAGES.replace("{programs}", " ".join(PROGRAMS)), limit_s=JOB_LIMIT_S)
    for user in USERS:
        data = f"/var/tmp/{user}"
        a.shell(f"mkdir {data}; /opt/farbus/bin/python -c {shlex.quote(TO_SCALE)} > {data}/in", user=user)
        a.run("podman", "import", "--quiet", "/var/tmp/cuda.tar", IMAGE, user=user, limit_s=JOB_LIMIT_S)
    a.run("systemctl", "start", "docker", limit_s=JOB_LIMIT_S)
    a.run("docker", "import", "/var/tmp/cuda.tar", IMAGE, limit_s=JOB_LIMIT_S)
    for engine in ENGINES:
        a.run(engine, "import", "/var/tmp/no-ssl.tar", PLAIN_IMAGE, limit_s=JOB_LIMIT_S)
    return Pair(a, b)


def in_container(engine: str, command: str, *options: str, image: str = IMAGE) -> tuple[str, ...]:
    """Return what docs/install.md says: a container in which a program has the GPUs of ``farbus run``.

    ``options`` are the engine's.
    """
    container = f'{ENGINES[engine]} --device "$FARBUS_CDI_DEVICE" {" ".join(options)} {image} {command}'
    return ("farbus", "run", "--quiet", "--", "sh", "-c", container)


def run(pair: Pair, *command: str, user: str) -> Result:
    """Run a command on a, also one that fails."""
    return pair.a.run(*command, user=user, check=False, limit_s=JOB_LIMIT_S)


def nothing_is_left(pair: Pair, engine: str, user: str) -> None:
    """Wait until no lease is held, and neither machine has anything of one; the user has no container."""
    farbus(pair.a, "leases", "-o", "json", until=r"^\[\]$")
    pair.b.until("! systemctl list-units --plain --no-legend 'farbus-lease-*' | grep farbus", limit_s=JOB_LIMIT_S)
    pair.a.until(f'[ -z "$(ls -A /run/cdi; ls -A {STATE}/sessions)" ]')
    assert pair.a.run(engine, "ps", "--all", "--quiet", user=user, limit_s=JOB_LIMIT_S).stdout == ""


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_in_a_container_computes_on_the_gpu_of_another_machine(
    pair: Pair, engine: str, user: str, network: str
) -> None:
    data = f"/var/tmp/{user}"
    pair.a.run("rm", "-f", f"{data}/out")
    done = run(pair, *in_container(engine, SCALE, NETWORKS[network], f"--volume {data}:/data"), user=user)
    assert (done.code, done.stdout) == (0, "scaled 65536 values\n"), done
    assert pair.a.run("/opt/farbus/bin/python", "-c", SCALED, f"{data}/out").stdout == "verified\n"
    assert pair.a.run("stat", "--format=%U", f"{data}/out").stdout.strip() == user


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_left_of_a_container_that_is_killed(pair: Pair, engine: str, user: str) -> None:
    a, b = pair
    said = f"/var/tmp/{user}/said.{engine}"
    program = ("sh", "-c", f"{in_container(engine, STAY)[-1]} > {said}")
    running = a.start("farbus", "run", "--quiet", "--", *program, user=user, limit_s=JOB_LIMIT_S)
    a.until(f"grep -q '^using 1 device' {said}", limit_s=JOB_LIMIT_S)
    assert len(a.shell(f"ls /run/cdi/farbus.a.*.json {STATE}/sessions/*").stdout.split()) == 2
    assert "farbus-lease-" in b.run("systemctl", "list-units", "--plain", "--no-legend").stdout
    a.run("pkill", "-KILL", "-x", "stay")
    assert running.wait(check=False).code == 128 + signal.SIGKILL
    nothing_is_left(pair, engine, user)


# The last ends with 0 where podman is older than 4.6, as here: docs/install.md#containers.
@pytest.mark.parametrize(
    ("engine", "before", "codes"),
    [("docker", "", "143"), ("podman", "podman unshare true; ", "143"), ("podman", "", "(0|143)")],
)
def test_a_job_that_is_cancelled_ends_its_container(pair: Pair, engine: str, before: str, codes: str) -> None:
    container = in_container(engine, STAY, "--init")[-1]
    submit = ("farbus", "submit", "--gpus", "1", "--node", "a", "--", "sh", "-c", f"{before}exec {container}")
    job = run(pair, *submit, user="alice").stdout.strip()
    farbus(pair.a, "logs", job, until="using 1 device", user="alice")
    assert run(pair, "farbus", "cancel", job, user="alice").code == 0
    ended = rf"^job {job}: cancelled: .*\n  task main.0: exited \(code {codes}\)"
    farbus(pair.a, "jobs", job, user="alice", until=ended)
    nothing_is_left(pair, engine, "alice")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_without_the_device_sees_no_gpu(pair: Pair, engine: str) -> None:
    container = f"{ENGINES[engine]} --volume /var/tmp/root:/data {IMAGE} {SCALE}"
    done = run(pair, "farbus", "run", "--quiet", "--", "sh", "-c", container, user="root")
    assert done.code == 1
    assert done.stdout.startswith("cudaMalloc(")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_of_another_user_is_told_whom_to_be(pair: Pair, engine: str) -> None:
    done = run(pair, *in_container(engine, STAY, "--user 4711"), user="root")
    assert done.code == 1
    assert done.stderr.endswith(
        "farbus: open the session file /run/farbus/session: Permission denied;"
        " it is for another user: run the program as that one, in a container as root\n"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_whose_image_has_no_openssl_is_told_what_it_needs(pair: Pair, engine: str) -> None:
    done = run(pair, *in_container(engine, STAY, image=PLAIN_IMAGE), user="root")
    assert done.code == 1
    assert re.search(r"^farbus: .*: no libssl.so.3 .*; install OpenSSL 3 .*\n\Z", done.stderr, re.MULTILINE)
