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
    """The table below **Now**: figures by name, each by transport."""
    text = (ROOT / "docs" / "performance.md").read_text().partition("\n### Now\n")[2].partition("\nThe aims are ")[0]
    found = rows(text)
    return {name: dict(zip(found["figure"], cells, strict=True)) for name, cells in found.items()}


def both(figures: list[str], pattern: str) -> list[float]:
    """What ``pattern`` finds in pageable and in pinned copies, in both directions."""
    return [float(each) for figure in figures for match in re.findall(pattern, figure) for each in match]


def span(values: list[float]) -> str:
    return f"{min(values):g} to {max(values):g}"


def test_figures_are_those_of_the_performance_page() -> None:
    table, said = now(), rows((ROOT / "README.md").read_text())
    posted = {name: figure.removesuffix(" µs") for name, figure in table["posted_call"].items()}
    assert said["a posted call, such as a kernel launch, on the calling thread"] == [
        f"{posted['tcp']} µs; over shared memory {posted['shm']}", ""
    ]  # fmt: skip
    trip = {name: re.findall(NUMBER, cell)[:2] for name, cell in table["round_trip (`cuStreamQuery`)"].items()}
    assert said["a round trip"] == [
        f"{trip['tcp'][0]} µs; over shared memory {trip['shm'][0]}", f"{trip['tcp'][1]}; {trip['shm'][1]}"
    ]  # fmt: skip
    rates, ratios = {}, {}
    for name in ("tcp", "shm"):
        cells = [table[f"64 MiB {memory}"][name] for memory in ("pageable", "pinned")]
        rates[name] = span(both(cells, rf"({NUMBER}) and ({NUMBER}) GB/s"))
        ratios[name] = span(both(cells, rf": ({NUMBER}) \([^)]*\), ({NUMBER}) \("))
    assert said["copies of 64 MiB"] == [
        f"{rates['tcp']} GB/s; over shared memory {rates['shm']}", f"{ratios['tcp']}; {ratios['shm']}"
    ]  # fmt: skip
