"""Works of storage, as orders to the program in a guest that does them (:mod:`tests.lab.storage`)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from farbus.model.nvmeof import Export
from farbus.nvmeof.target import AddressWork
from farbus.nvmeof.using import UseWork
from farbus.nvmeof.volumes import VolumeWork
from tests.lab.guest import Guest, patient
from tests.lab.tree import PYTHON

LIMIT_S = patient(400)


def orders(guest: Guest, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Have works done in a guest, in order; return what became of each, up to the first that failed and may not."""
    ran = guest.run(*PYTHON, "-m", "tests.lab.storage", input=json.dumps(asked), limit_s=LIMIT_S)
    told: list[dict[str, Any]] = json.loads(ran.stdout)
    return told


def done(guest: Guest, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Have done what must not fail."""
    told = orders(guest, *asked)
    assert [one for one in told if "error" in one] == []
    assert len(told) == len(asked)
    return told


def store(verb: str, work: VolumeWork, **more: Any) -> dict[str, Any]:
    """Order a work of the storing node."""
    return {"side": "store", "verb": verb, "work": msgspec.to_builtins(work), **more}


def target(verb: str, export: Export) -> dict[str, Any]:
    """Order an export alone."""
    return {"side": "target", "verb": verb, "work": msgspec.to_builtins(export)}


def address(work: AddressWork) -> dict[str, Any]:
    """Order what is to become of an address."""
    return {"side": "address", "verb": "go", "work": msgspec.to_builtins(work)}


def use(verb: str, work: UseWork, **more: Any) -> dict[str, Any]:
    """Order a work of the using node."""
    return {"side": "use", "verb": verb, "work": msgspec.to_builtins(work), **more}
