"""Phases of a round: each resource its own flow network, each result the next one's preference (docs/scheduling.md)."""
