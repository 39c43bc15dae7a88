"""The ``farbus`` command.

:func:`main` is the entry point.  What a command needs is imported when that
command is chosen (:mod:`farbus.cli.application`), so that ``farbus version``
or a tab completion answers at once.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in ``arguments`` (those of this process if None) and return its exit code."""
    try:
        from farbus.cli.application import run  # noqa: PLC0415 - importing farbus.cli alone stays free of typer

        return run(arguments)
    except KeyboardInterrupt:
        # While it is loaded, which takes a moment: whoever presses Ctrl-C at once wants no traceback.
        return 128 + signal.SIGINT
