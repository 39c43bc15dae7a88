"""``python -m farbus.cli``: the same as the ``farbus`` command."""

from __future__ import annotations

import sys

from farbus.cli import main

if __name__ == "__main__":
    sys.exit(main())
