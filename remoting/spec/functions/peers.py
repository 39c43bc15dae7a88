"""Access to the memory of other devices."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import marshalled

ENTRIES: Final = (
    marshalled(31, "cuCtxDisablePeerAccess", 4000, "cuCtxDisablePeerAccess", "CUcontext peerContext", "hand"),
    marshalled(
        32, "cuCtxEnablePeerAccess", 4000, "cuCtxEnablePeerAccess", "CUcontext peerContext, unsigned int Flags", "hand"
    ),
    marshalled(
        65,
        "cuDeviceCanAccessPeer",
        4000,
        "cuDeviceCanAccessPeer",
        "int *canAccessPeer, CUdevice dev, CUdevice peerDev",
        "hand",
    ),
    marshalled(
        80,
        "cuDeviceGetP2PAtomicCapabilities",
        13000,
        "cuDeviceGetP2PAtomicCapabilities",
        "unsigned int *capabilities, const CUatomicOperation *operations, unsigned int count, CUdevice srcDevice, CUdevice dstDevice",
        "out:capabilities[count] in:operations[count] hand",
    ),
    marshalled(
        81,
        "cuDeviceGetP2PAttribute",
        8000,
        "cuDeviceGetP2PAttribute",
        "int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice",
        "hand",
    ),
)
