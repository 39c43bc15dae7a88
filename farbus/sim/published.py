"""Tables III to V of "Workload-aware placement strategies to leverage disaggregated resources in the datacenter".

One line per row: target load, policy, then the nine columns as printed:
loads of processors, bandwidth and capacity; missed deadlines and missed urgent
ones in percent; drives in use in percent; average waiting time in seconds;
drives by composition; workloads by composition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

COLUMNS = (
    "processor load",
    "bandwidth load",
    "capacity load",
    "missed %",
    "missed urgent %",
    "drives used %",
    "waiting s",
    "composition size",
    "sharing",
)

_TABLES = {
    "high-bandwidth": """
0.9 first-fit 0.84 0.84 0.14 96.71 19.52 99.81 45916 1.00 1.00
0.9 first-fit-attached 0.74 0.67 0.11 98.05 20.19 79.75 63108 1.00 1.00
0.9 aware 0.84 0.94 0.16 92.42 17.51 99.91 38428 1.02 1.26
0.9 aware-attached 0.74 0.66 0.12 97.18 19.58 78.77 57668 1.02 1.06
0.8 first-fit 0.72 0.84 0.14 89.13 18.71 99.91 18088 1.00 1.00
0.8 first-fit-attached 0.65 0.67 0.11 75.99 19.79 79.75 34302 1.00 1.00
0.8 aware 0.87 1.08 0.18 4.70 0.40 92.51 569 1.24 1.96
0.8 aware-attached 0.65 0.67 0.11 75.05 19.25 77.98 29150 1.04 1.12
0.7 first-fit 0.69 0.84 0.14 47.55 11.80 99.72 3888 1.00 1.00
0.7 first-fit-attached 0.60 0.67 0.11 72.43 18.85 79.97 20616 1.00 1.00
0.7 aware 0.70 0.85 0.14 0.47 0.47 76.07 29 1.36 2.06
0.7 aware-attached 0.60 0.67 0.11 71.43 18.31 76.88 15528 1.04 1.18
0.6 first-fit 0.60 0.74 0.12 0.07 0.07 87.92 53 1.00 1.00
0.6 first-fit-attached 0.56 0.67 0.11 64.52 17.00 79.90 7986 1.00 1.00
0.6 aware 0.58 0.70 0.12 0.00 0.00 60.79 3 1.51 2.27
0.6 aware-attached 0.56 0.67 0.11 50.81 13.37 70.06 3712 1.15 1.57
0.5 first-fit 0.50 0.62 0.10 0.00 0.00 73.16 1 1.00 1.00
0.5 first-fit-attached 0.50 0.62 0.10 0.54 0.54 73.16 124 1.00 1.00
0.5 aware 0.48 0.58 0.10 0.00 0.00 51.34 0 1.58 2.28
0.5 aware-attached 0.48 0.59 0.10 0.07 0.07 44.78 74 1.58 2.71
""",
    "high-capacity": """
0.9 first-fit 0.84 0.29 0.76 90.68 18.51 99.86 11396 1.00 1.00
0.9 first-fit-attached 0.74 0.23 0.61 95.51 19.85 79.83 21947 1.00 1.00
0.9 aware 0.84 0.28 0.78 90.01 18.44 99.95 10614 1.00 1.00
0.9 aware-attached 0.74 0.22 0.62 94.97 19.72 79.87 21018 1.00 1.00
0.8 first-fit 0.79 0.28 0.76 10.26 5.16 98.56 945 1.00 1.00
0.8 first-fit-attached 0.70 0.23 0.61 72.10 18.98 79.91 10391 1.00 1.00
0.8 aware 0.79 0.27 0.76 0.27 0.27 90.86 154 1.00 1.00
0.8 aware-attached 0.70 0.22 0.62 72.37 19.18 79.78 9635 1.00 1.00
0.7 first-fit 0.69 0.24 0.66 0.07 0.07 85.73 65 1.00 1.00
0.7 first-fit-attached 0.66 0.23 0.61 63.45 16.90 79.87 3965 1.00 1.00
0.7 aware 0.69 0.24 0.66 0.47 0.47 79.97 29 1.00 1.00
0.7 aware-attached 0.66 0.22 0.62 60.63 15.96 79.29 3215 1.00 1.00
0.6 first-fit 0.58 0.20 0.56 0.00 0.00 71.93 8 1.00 1.00
0.6 first-fit-attached 0.58 0.20 0.56 1.27 1.27 71.93 118 1.00 1.00
0.6 aware 0.58 0.20 0.56 0.34 0.34 68.92 8 1.00 1.00
0.6 aware-attached 0.58 0.20 0.56 0.74 0.74 69.50 109 1.00 1.00
0.5 first-fit 0.52 0.18 0.50 0.00 0.00 64.16 3 1.00 1.00
0.5 first-fit-attached 0.52 0.18 0.50 0.54 0.54 64.16 31 1.00 1.00
0.5 aware 0.52 0.17 0.50 0.27 0.27 63.22 3 1.00 1.00
0.5 aware-attached 0.52 0.17 0.50 0.80 0.80 64.15 44 1.00 1.00
""",
    "high-compute": """
0.9 first-fit 0.79 0.30 0.10 70.46 4.69 40.74 13968 1.00 1.00
0.9 first-fit-attached 0.70 0.25 0.07 94.91 18.29 32.38 27096 1.00 1.00
0.9 aware 0.78 0.28 0.10 68.85 1.88 63.51 14437 1.35 1.03
0.9 aware-attached 0.71 0.28 0.10 95.24 18.96 38.52 24523 1.04 1.04
0.8 first-fit 0.77 0.26 0.09 62.22 1.61 34.82 4983 1.00 0.98
0.8 first-fit-attached 0.70 0.24 0.08 92.83 18.49 31.53 14116 1.00 1.00
0.8 aware 0.76 0.24 0.09 59.54 0.74 56.89 4774 1.44 0.98
0.8 aware-attached 0.70 0.23 0.08 88.88 16.14 33.41 12734 1.10 1.03
0.7 first-fit 0.69 0.22 0.07 0.00 0.00 29.30 186 1.00 0.97
0.7 first-fit-attached 0.68 0.22 0.07 19.36 6.77 29.26 1581 1.00 0.98
0.7 aware 0.68 0.20 0.07 0.00 0.00 40.67 169 1.50 1.13
0.7 aware-attached 0.67 0.20 0.07 11.86 3.21 33.21 1409 1.41 1.22
0.6 first-fit 0.57 0.18 0.06 0.00 0.00 24.38 20 1.00 0.94
0.6 first-fit-attached 0.57 0.18 0.06 0.47 0.47 24.38 34 1.00 0.94
0.6 aware 0.56 0.17 0.06 0.00 0.00 30.36 19 1.53 1.19
0.6 aware-attached 0.56 0.17 0.06 0.00 0.00 27.82 26 1.53 1.26
0.5 first-fit 0.50 0.16 0.06 0.00 0.00 21.46 2 1.00 0.92
0.5 first-fit-attached 0.50 0.16 0.06 0.50 0.50 21.46 8 1.00 0.92
0.5 aware 0.50 0.14 0.05 0.00 0.00 26.61 1 1.53 1.16
0.5 aware-attached 0.50 0.15 0.05 0.00 0.00 24.69 4 1.54 1.25
""",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One printed row; ``cells`` are its texts, without units."""

    scenario: str
    target_load: float
    aware: bool
    attached: bool
    cells: tuple[str, ...]


def rows() -> Iterator[Row]:
    """Yield all printed rows, table by table."""
    for scenario, text in _TABLES.items():
        for line in text.strip().splitlines():
            load, policy, *cells = line.split()
            yield Row(scenario, float(load), policy.startswith("aware"), policy.endswith("attached"), tuple(cells))
