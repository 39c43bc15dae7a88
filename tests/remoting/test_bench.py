"""What ``farbus bench remoting`` prints; its numbers belong to no test."""

from __future__ import annotations

from farbus.remoting.bench import Result, table


def test_figures_stand_under_their_titles_however_long_a_name_is() -> None:
    results = [
        Result(name="exec_to_first_kernel_cold", transport="shm", value=61.5, unit="ms", reference=5.0, ratio=12.3,
               best_ratio=11.0),
        Result(name="d2h", transport="unix", memory="pinned", bytes=64 << 20, value=4.25, unit="GB/s", reference=5.0,
               ratio=0.85, best_ratio=0.9, wire_ratio=0.95),
        Result(name="first_launch_round_trips", value=3.0, unit="round trips"),
    ]  # fmt: skip
    assert table(results) == (
        "NAME                       VIA   OF              VALUE  UNIT          BARE  RATIO   BEST  WIRE\n"
        "exec_to_first_kernel_cold  shm   -              61.500  ms           5.000  12.30  11.00     -\n"
        "d2h                        unix  pinned 64 MiB   4.250  GB/s         5.000   0.85   0.90  0.95\n"
        "first_launch_round_trips   -     -               3.000  round trips      -      -      -     -\n"
    )
