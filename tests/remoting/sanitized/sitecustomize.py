"""For servers of a sanitized build: their engine, in place of the package's (harness.py puts this in PYTHONPATH)."""

from __future__ import annotations

import importlib.util
import os
import sys

_NAME = "farbus.remoting._server"
_spec = importlib.util.spec_from_file_location(
    _NAME, os.path.join(os.environ["FARBUS_SANITIZED_BUILD"], "ffi", "farbus", "remoting", "_server.abi3.so")
)
assert _spec is not None
assert _spec.loader is not None
sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_NAME])
