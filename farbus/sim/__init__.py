"""The simulator: the scheduler's own code under a virtual clock, seeded."""
