"""Where the paper's text and its published numbers part: each a switch, with both readings as presets.

The numbers of tables III to V come from the authors' simulator
(github.com/MortI2C/simulator, branch real_disagg), whose conventions the text
does not tell, or tells otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """How to read the paper."""

    constant_gaps: bool
    """All gaps between arrivals are the same draw; else a Poisson process, as section IV.A says."""
    switch_at_half: bool
    """Equation 4 with 50 % in place of 70 %, and the capacity strictly below it; else as printed."""
    whole_numbers: bool
    """Equations 2 and 3 in whole percent, by whole-number division; else as they are."""
    frozen_runs: bool
    """A run keeps the time that it began with; else it changes as sharers come and go."""
    estimate_alone: bool
    """Whether a deadline holds is estimated for the present sharers; else for those and the newcomer."""
    base_time: bool
    """Minimise Fragmentation estimates by the base time; else by the model, as "model-aware" says."""
    one_selection: bool
    """Maximise Composition gives up where so many drives are not free; else it takes fewer."""
    credit_unreserved: bool
    """A sharer gives back bandwidth that it never took; else it does not."""
    starts_at_any_load: bool
    """Measuring begins when any ideal load reaches 0.7; else when that of the processors does (section IV.B)."""
    ideal_from_arrival: bool
    """On the ideal node a job that waited ends as if it had not; else it runs for its whole time."""
    whole_averages: bool
    """Sizes and sharing are averaged over seconds of whole-number averages; else exactly."""


PAPER_EXACT = Conventions(
    constant_gaps=True,
    switch_at_half=True,
    whole_numbers=True,
    frozen_runs=True,
    estimate_alone=True,
    base_time=True,
    one_selection=True,
    credit_unreserved=True,
    starts_at_any_load=True,
    ideal_from_arrival=True,
    whole_averages=True,
)
"""What the published tables were made with."""

CORRECTED = Conventions(
    constant_gaps=False,
    switch_at_half=False,
    whole_numbers=False,
    frozen_runs=False,
    estimate_alone=False,
    base_time=False,
    one_selection=False,
    credit_unreserved=False,
    starts_at_any_load=False,
    ideal_from_arrival=False,
    whole_averages=False,
)
"""What the text says."""
