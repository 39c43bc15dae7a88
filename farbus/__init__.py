"""Farbus: devices of a data centre, usable from any machine in it."""

__version__ = "0.1.0"
