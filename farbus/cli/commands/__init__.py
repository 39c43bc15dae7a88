"""One module for each command; each has an ``app`` that its command is built from."""
