"""How long a node's kernel takes to find a device and to let go of one, and the deadlines that are learned from it.

As a chassis's times are (:class:`farbus.model.fabric.StepHistory`), but by the
class of the device: a drive is there in a second, a GPU's driver takes many.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from farbus.model.fabric import learned_deadline_s, lengthened_s, measured, quantile
from farbus.model.value import Value


class BusStep(enum.StrEnum):
    """What the kernel is asked for."""

    SCAN = "scan"
    """Until the device is there with all its attributes: a GPU's driver initialises for some seconds."""
    REMOVE = "remove"
    """Until all functions are gone: a drive flushes, a GPU's driver unloads its state."""


COLD_DEADLINE_S = 60.0
"""Before anything was measured."""

FLOOR_S = 20.0
"""The shortest: to be late costs a move that was about to succeed."""

COLD_EXPECTED_S = 3.0
"""What a step takes where nobody has measured it: a drive in a guest took one second each way."""


class BusHistory(Value, frozen=True, kw_only=True):
    """The last times of each step for each class of devices, in seconds, the newest last."""

    times: dict[str, tuple[float, ...]] = {}
    """By step and class: ``scan 0108``."""
    given_up: dict[str, float] = {}
    """Seconds after which one was given up; no entry once one has come to its end again (:func:`measured`)."""

    def with_time(self, step: BusStep, pci_class: int, seconds: float, *, finished: bool = True) -> BusHistory:
        """Return the history with one time more; ``pci_class`` has 24 bits."""
        times, given_up = measured(
            self.times, self.given_up, _name(step, pci_class), seconds, finished=finished,
            cold_s=COLD_DEADLINE_S, floor_s=FLOOR_S,
        )  # fmt: skip
        return msgspec.structs.replace(self, times=times, given_up=given_up)

    def deadline_s(self, step: BusStep, pci_class: int = 0) -> float:
        """Return the seconds after which ``step`` is given up; for a class that is not known the longest of all."""
        return max((self._deadline_s(name) for name in self._names(step, pci_class)), default=COLD_DEADLINE_S)

    def expected_s(self, step: BusStep, pci_class: int = 0) -> float:
        """Return how many seconds ``step`` is likely to take: the median of its last times."""
        known = [times for name in self._names(step, pci_class) if (times := self.times.get(name))]
        return max((quantile(times, 0.5) for times in known), default=COLD_EXPECTED_S)

    def _deadline_s(self, name: str) -> float:
        learned_s = learned_deadline_s(self.times.get(name, ()), cold_s=COLD_DEADLINE_S, floor_s=FLOOR_S)
        return lengthened_s(learned_s, self.given_up.get(name, 0.0))

    def _names(self, step: BusStep, pci_class: int) -> list[str]:
        if pci_class:
            return [_name(step, pci_class)]
        return [name for name in {*self.times, *self.given_up} if name.startswith(f"{step} ")]


def _name(step: BusStep, pci_class: int) -> str:
    return f"{step} {pci_class >> 8:04x}"


def _nothing(_: BusHistory) -> None:
    """Where nobody keeps it."""


class BusTimes:
    """The history of one node as it grows; ``keep`` hears of each change."""

    def __init__(self, history: BusHistory | None = None, *, keep: Callable[[BusHistory], None] = _nothing) -> None:
        self.history = history or BusHistory()
        self._keep = keep

    def measure(self, step: BusStep, pci_class: int, seconds: float, *, finished: bool = True) -> None:
        """Note how long a step took, or after how many seconds it was given up."""
        self.history = self.history.with_time(step, pci_class, seconds, finished=finished)
        self._keep(self.history)
