"""Of nodes that are restored together there are all or none, whatever keeps one of them from coming up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import nodes
from tests.lab.guest import GuestError, Machine, Snapshot
from tests.lab.nodes import NODE, Lab


class Restored:
    """A guest as far as a lab knows it; one of ``broken`` does not come up."""

    broken: frozenset[str] = frozenset()
    stopped: list[str]

    def __init__(self, _image: Path, _machine: Machine, *, name: str, **_: object) -> None:
        self.name = name

    def wait_for_boot(self) -> None:
        if self.name in self.broken:
            raise GuestError(f"guest {self.name}: it can't be restored")

    def processor_s(self) -> float:
        return 0.0

    def stop(self) -> None:
        self.stopped.append(self.name)

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.setattr(nodes, "Guest", Restored)
    monkeypatch.setattr(nodes, "ensure_snapshot", lambda *_: Snapshot(tmp_path, NODE))
    monkeypatch.setattr(Restored, "stopped", [], raising=False)
    return Lab(tmp_path, lambda: tmp_path)


def test_where_one_node_can_not_be_restored_none_is_there(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = lab.nodes("a")
    with monkeypatch.context() as context:
        context.setattr(Restored, "broken", frozenset({"c"}))
        with pytest.raises(GuestError, match="guest c: it can't be restored"):
            lab.nodes("a", "b", "c")
    assert Restored.stopped == ["b", "c"]
    again = lab.nodes("a", "b", "c")
    assert again[0] is a
    assert [node.name for node in again] == ["a", "b", "c"]
