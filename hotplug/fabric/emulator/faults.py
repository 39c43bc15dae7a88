"""What an emulated chassis does wrong: by seeded rates, or by a script that says at which request."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable

import msgspec

from farbus.model.fabric import FabricStep


class FaultKind(enum.StrEnum):
    """What goes wrong with one request."""

    EOF = "eof"
    """The connection ends without a reply."""
    ERROR = "error"
    """A reply with a status of 500 or more."""
    HANG = "hang"
    """No reply, and the connection stays."""
    CUT = "cut"
    """The reply ends in its middle."""
    FALSE_NEGATIVE = "false-negative"
    """What was asked for is done, and the reply says that it was not. Steps only."""
    DENY = "deny"
    """Nothing is done, and the reply says so. Steps only."""
    STALE = "stale"
    """The state before the last change is listed. Listings only."""
    PARTIAL = "partial"
    """Some devices are not listed. Listings only."""


OF_LISTINGS = frozenset({FaultKind.STALE, FaultKind.PARTIAL})
OF_STEPS = frozenset({FaultKind.FALSE_NEGATIVE, FaultKind.DENY})


def fits(kind: FaultKind, step: FabricStep) -> bool:
    """Say whether a fault can happen to a request for ``step``."""
    return kind not in (OF_STEPS if step is FabricStep.LIST else OF_LISTINGS)


TRUE_AFTERWARDS = 8
"""Listings that are true after a stale or partial one: the cache behind it is renewed by being asked."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """How many of all requests go wrong, each from 0 to 1."""

    eof: float = 0.0
    error: float = 0.0
    hang: float = 0.0
    cut: float = 0.0
    false_negative: float = 0.0
    deny: float = 0.0
    stale: float = 0.0
    partial: float = 0.0

    def rate(self, kind: FaultKind) -> float:
        """Return the rate of ``kind``."""
        return float(getattr(self, kind.value.replace("-", "_")))


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One fault. ``after`` says that what was asked for is done nevertheless; ``number`` counts requests from 1."""

    kind: FaultKind
    step: FabricStep = FabricStep.LIST
    number: int = 1
    after: bool = False

    def __str__(self) -> str:
        return f"{self.kind} at {self.step} {self.number}" + (", after it was done" if self.after else "")


class Faults:
    """Draws what goes wrong with each request of one chassis. A script goes before rates."""

    def __init__(self, *, rates: Rates | None = None, script: Iterable[Fault] = (), seed: int = 0) -> None:
        self.rates = rates or Rates()
        self.script = list(script)
        self.injected: list[Fault] = []
        """Those that happened, in their order."""
        self.told: Callable[[Fault], None] = _nobody_hears
        """Called with each of them."""
        self._random = random.Random(seed)  # noqa: S311 - it has to be the same every time
        self._requests: dict[FabricStep, int] = {}
        self._true_listings = 0

    def draw(self, step: FabricStep, *, has_devices: bool = True) -> Fault | None:
        """Return what goes wrong with the next request for ``step``.

        ``has_devices`` is false for parts of a listing that can be neither stale nor partial.
        """
        number = self._requests[step] = self._requests.get(step, 0) + 1
        fault = next((each for each in self.script if each.step is step and each.number == number), None)
        if fault is None:
            draw, after = self._random.random(), self._random.random() < 0.5
            for kind in FaultKind:
                draw -= self.rates.rate(kind)
                if draw < 0:
                    fault = Fault(kind=kind, step=step, number=number, after=after)
                    break
            if fault is None or not self._fits(fault, has_devices=has_devices):
                fault = None
        if step is FabricStep.LIST and has_devices:
            self._true_listings = max(0, self._true_listings - 1)
            if fault is not None and fault.kind in OF_LISTINGS:
                self._true_listings = TRUE_AFTERWARDS + 1
        if fault is not None:
            self.injected.append(fault)
            self.told(fault)
        return fault

    def _fits(self, fault: Fault, *, has_devices: bool) -> bool:
        is_early = fault.kind in OF_LISTINGS and (not has_devices or self._true_listings > 1)
        return fits(fault.kind, fault.step) and not is_early


def _nobody_hears(_: Fault) -> None:
    """Do nothing: :attr:`Faults.told` before there is somebody who wants to know."""
