"""What of this tree runs in a guest without being installed there: packages of farbus, and programs of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.lab.guest import Guest

ROOT = Path(__file__).resolve().parents[2]
TREE = "/opt/tree"
"""Where it lies there."""

PYTHON = ("env", f"PYTHONPATH={TREE}", "/opt/farbus/bin/python")
"""Runs a program of it."""

STORAGE = ("model", "linux", "nvmeof")
"""The packages of farbus that storage needs below the agent."""


def put_tree(guest: Guest, place: Path, *, packages: Sequence[str] = STORAGE, tests: Sequence[str] = ()) -> None:
    """Copy packages of farbus, and files or directories of ``tests``, into a guest; ``place`` is an empty directory."""
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("farbus/__init__.py", "farbus/errors.py", *(f"tests/{name}" for name in tests)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    for name in packages:
        shutil.copytree(ROOT / "farbus" / name, place / "farbus" / name, ignore=left_out)
    guest.copy_in(place, TREE)
