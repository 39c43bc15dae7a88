"""Pure values: what Farbus knows about nodes, devices, jobs, plans and leases.

Nothing here does I/O, reads a clock or knows asyncio.  Every type is a frozen
:class:`farbus.model.value.Value`, so it can be compared, hashed, stored as
JSON and converted to and from the messages of :mod:`farbus.api` by its fields.
"""
