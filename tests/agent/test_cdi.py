"""What container engines are told of a task's remote GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from farbus.agent import cdi


def test_the_paths_of_the_environment_are_those_of_the_container() -> None:
    name = cdi.device_name("j7", "main.0")
    environment = {
        "FARBUS_SESSION": "/s/j7.main.0.session",
        "LD_PRELOAD": "/l/1f/libcuda.so.1",
        "LD_LIBRARY_PATH": "/l/1f",
        "OTHER": "/l/1fx",
    }
    content = cdi.specification(
        name,
        environment,
        session=Path("/s/j7.main.0.session"),
        shim=Path("/l/1f"),
        sockets=[Path("/u/one"), Path("/u/two")],
    )
    told = json.loads(content)
    assert (told["kind"], told["cdiVersion"]) == ("farbus.io/gpu", "0.3.0")
    (device,) = told["devices"]
    assert f"{told['kind']}={device['name']}" == name == "farbus.io/gpu=j7.main.0"
    assert device["containerEdits"]["env"] == [
        "FARBUS_SESSION=/run/farbus/session",
        "LD_PRELOAD=/run/farbus/lib/libcuda.preload.so:/run/farbus/lib/libnvidia-ml.preload.so",
        "OTHER=/l/1fx",
    ]
    mounts = {mount["hostPath"]: mount["containerPath"] for mount in device["containerEdits"]["mounts"]}
    assert mounts == {
        "/s/j7.main.0.session": "/run/farbus/session",
        "/l/1f": "/run/farbus/lib",
        # Where the shim looks: beside the session file, and not at other leases' sockets.
        "/u/one": "/run/farbus/one",
        "/u/two": "/run/farbus/two",
    }


def test_device_files_are_named_where_there_are_any() -> None:
    def told(*nodes: Path) -> object:
        content = cdi.specification("farbus.io/gpu=j7.main.0", {}, session=Path("/s"), shim=Path("/l"), nodes=nodes)
        return json.loads(content)["devices"][0]["containerEdits"].get("deviceNodes")

    assert told() is None
    assert told(Path("/dev/infiniband/uverbs3")) == [{"path": "/dev/infiniband/uverbs3"}]
