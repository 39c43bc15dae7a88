"""The protocol between Farbus's processes; the only package that imports gRPC.

gRPC's fork handlers kill a few per cent of the children that a process with
uvloop spawns (2 to 5 in 100 with grpcio 1.85); Farbus never uses gRPC in a
forked child, so they are switched off before gRPC is imported anywhere.
"""

import os

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
# One line of gRPC's own for each lost connection would bury ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
