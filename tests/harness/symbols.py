"""Which files need which others: by the symbols that nm finds in their objects, and by what they include."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Needs = dict[str, dict[str, set[str]]]
"""Which file needs which others, and for which symbols."""


@functools.cache
def symbols_of(path: Path) -> tuple[set[str], set[str]]:
    """Return the symbols that an object file defines, and those that it needs from others."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    output = subprocess.run([nm, "-P", path], check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[:2] for line in output.splitlines()]
    return {name for name, kind in symbols if kind in "BCDRTVW"}, {name for name, kind in symbols if kind in "Uw"}


def home_of(objects: Mapping[Path, str]) -> dict[str, str]:
    """Return the file that defines each symbol."""
    return {name: file for path, file in objects.items() for name in symbols_of(path)[0]}


def needs_of(objects: Mapping[Path, str]) -> Needs:
    """Return the needs of files, each made of the object files that have its name here."""
    home = home_of(objects)
    needs: Needs = {file: {} for file in objects.values()}
    for path in objects:
        for name in symbols_of(path)[1] & home.keys():
            if home[name] != objects[path]:
                needs[objects[path]].setdefault(home[name], set()).add(name)
    return needs


def includes_of(root: Path) -> Needs:
    """Return the needs of the files below ``root`` by what they include of each other."""
    needs: Needs = {str(path.relative_to(root)): {} for path in root.rglob("*.[ch]")}
    for file, others in needs.items():
        for name in re.findall(r'^#include "([^"]+)"', (root / file).read_text(), re.MULTILINE):
            other = os.path.relpath((root / file).parent / name, root)
            if other in needs:
                others[other] = {name}
    return needs


def foreign_names(root: Path, home: Mapping[str, str]) -> set[str]:
    """Return what headers below ``root`` tell of other sources than the one whose name they have, in words.

    ``home`` says which source, without its ending, each symbol is defined in.  A header that has no source's name may
    tell of several.
    """
    stems = {Path(file).name for file in home.values()}
    found = set()
    for path in root.rglob("*.h"):
        if path.stem not in stems:
            continue
        beside = str(path.relative_to(root).with_suffix(""))
        own = {beside} & set(home.values()) or {file for file in home.values() if Path(file).name == path.stem}
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        while (flat := re.sub(r"\{[^{}]*\}", ";", text)) != text:
            text = flat
        names = {*re.findall(r"(\w+)\s*\(", text), *re.findall(r"\bextern\b[^;(]*?(\w+)(?:\[\w*\])*;", text)}
        found |= {
            f"{path.relative_to(root)}: {name} of {home[name]}" for name in names & home.keys() if home[name] not in own
        }
    return found


def rooms_of(text: str) -> list[str]:
    """Return the rooms that a page's tables of them name, from top to bottom."""
    return [row for row in re.findall(r"^\| (\w+) \|", text, re.MULTILINE) if row not in {"room", "layer"}]


def upward(needs: Needs, height: Callable[[str], tuple[int, ...]]) -> set[str]:
    """Return the needs of files that stand higher than who needs them, in words."""
    return {
        f"{file} -> {other}: {', '.join(sorted(names))}"
        for file, others in needs.items()
        for other, names in others.items()
        if height(file) < height(other)
    }
