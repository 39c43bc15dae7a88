"""The README's figures of remoting are those of docs/performance.md, "Now"."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = r"\d+(?:\.\d+)?"


def rows(text: str) -> dict[str, list[str]]:
    """The cells of tables' rows by what stands first in them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in ([each.strip() for each in line.strip("|").split("|")] for line in lines)}


def now() -> dict[str, dict[str, str]]:
    """The tables of "Now", which have one head: figures by name, each by transport."""
    text = (ROOT / "docs" / "performance.md").read_text().partition("\n### Now\n")[2].partition("\n### ")[0]
    found = rows(text)
    return {name: dict(zip(found["figure"], cells, strict=True)) for name, cells in found.items()}


def median(cell: str) -> float:
    """What stands before the least and the largest: 0.97 of "0.97 (0.95 to 1.09)"."""
    found = re.fullmatch(rf"({NUMBER}) \({NUMBER} to {NUMBER}\)", cell)
    assert found, cell
    return float(found[1])


def span(values: list[float]) -> str:
    return f"{min(values):g} to {max(values):g}"


def test_figures_are_those_of_the_performance_page() -> None:
    table, said = now(), rows((ROOT / "README.md").read_text())
    posted = {name: figure.removesuffix(" µs") for name, figure in table["posted_call"].items()}
    assert said["a posted call, such as a kernel launch, on the calling thread"] == [
        f"{posted['tcp']} µs; over shared memory {posted['shm']}", ""
    ]  # fmt: skip
    trip = {name: figure.removesuffix(" µs") for name, figure in table["round_trip (`cuStreamQuery`)"].items()}
    of_bare = {name: median(cell) for name, cell in table["of a bare one"].items()}
    assert said["a round trip"] == [
        f"{trip['tcp']} µs; over shared memory {trip['shm']}", f"{of_bare['tcp']:g}; {of_bare['shm']:g}"
    ]  # fmt: skip
    rates, ratios = {}, {}
    kinds = [f"64 MiB {memory}" for memory in ("pageable", "pinned")]
    for name in ("tcp", "shm"):
        rates[name] = span([float(rate) for kind in kinds for rate in table[kind][name].split(", ")])
        ways = [f"{kind}, to the {side}" for kind in kinds for side in ("device", "host")]
        ratios[name] = span([median(table[way][name]) for way in ways])
    assert said["copies of 64 MiB"] == [
        f"{rates['tcp']} GB/s; over shared memory {rates['shm']}", f"{ratios['tcp']}; {ratios['shm']}"
    ]  # fmt: skip
