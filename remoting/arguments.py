"""The command lines of measurements that must do without the rest of Farbus, on a bare machine with a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn


class MeasurementParser(argparse.ArgumentParser):
    """The options of ``farbus bench NAME``: a wrong one is one line with exit code 2, as elsewhere in Farbus."""

    def __init__(self, name: str, *, description: str, examples: Sequence[str]) -> None:
        super().__init__(
            prog=f"farbus bench {name}",
            description=description,
            epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """End with one line that says what is wrong, and where it is explained."""
        self.exit(2, f"farbus: {self.prog.removeprefix('farbus ')}: {message}; {self.prog} --help explains them\n")
