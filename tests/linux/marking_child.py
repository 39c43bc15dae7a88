"""A child of an :class:`farbus.linux.answerer.Answerer` that makes a file as the last thing before it listens."""

from __future__ import annotations

import sys
from pathlib import Path

from farbus.linux.answerer import serve

if __name__ == "__main__":
    Path(sys.argv[2]).write_text("")
    serve(lambda question: [question], int(sys.argv[1]))
