"""Which object files need which others, by the symbols that nm finds in them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Needs = dict[str, dict[str, set[str]]]
"""Which file needs which others, and for which symbols."""


def symbols_of(path: Path) -> tuple[set[str], set[str]]:
    """Return the symbols that an object file defines, and those that it needs from others."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    output = subprocess.run([nm, "-P", path], check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[:2] for line in output.splitlines()]
    return {name for name, kind in symbols if kind in "BCDRTVW"}, {name for name, kind in symbols if kind in "Uw"}


def needs_of(objects: Mapping[Path, str]) -> Needs:
    """Return the needs of files, each made of the object files that have its name here."""
    symbols = {path: symbols_of(path) for path in objects}
    home = {name: objects[path] for path, (defined, _) in symbols.items() for name in defined}
    needs: Needs = {file: {} for file in objects.values()}
    for path, (_, needed) in symbols.items():
        for name in needed & home.keys():
            if home[name] != objects[path]:
                needs[objects[path]].setdefault(home[name], set()).add(name)
    return needs


def rooms_of(text: str) -> list[str]:
    """Return the rooms that a page's tables of them name, from top to bottom."""
    return [row for row in re.findall(r"^\| (\w+) \|", text, re.MULTILINE) if row not in {"room", "layer"}]


def upward_calls(needs: Needs, height: Callable[[str], tuple[int, ...]]) -> set[str]:
    """Return the calls of files that stand higher than who calls them, in words."""
    return {
        f"{file} -> {other}: {', '.join(sorted(names))}"
        for file, others in needs.items()
        for other, names in others.items()
        if height(file) < height(other)
    }
