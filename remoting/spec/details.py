"""What a line of a trace says of a call beside its result (native/client/ground/trace.h), by function.

Each is C over the function's parameters, run when the call has returned, in words of
native/client/calls/details.h:

``BYTES(n)`` ``AREA(width, height, element)``
    so many bytes
``COPY(to, from, n)``
    a copy of n bytes, between addresses or arrays
``BOX(copy, depth)``
    a copy as one of the structures ``CUDA_MEMCPY2D`` and ``CUDA_MEMCPY3D`` describes it
``BATCH(to, from, sizes, count)``
    several copies
``PARTS()``
    several copies, of each of which the shim has told while it made it (client_trace_part)
``FLAT(array)`` ``DEEP(array, levels)``
    an array, as one of the structures ``CUDA_ARRAY_DESCRIPTOR`` and ``CUDA_ARRAY3D_DESCRIPTOR`` describes it
``KERNEL(f)`` ``LAUNCH(f, grid and block)`` ``CONFIGURED(f, config)``
    a launch
``IMAGE(place)``
    what was loaded, and named at ``place``

Those that look behind a pointer do so only where the call has succeeded.
"""

from __future__ import annotations

import re
from typing import Final

_GEOMETRY = "gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ"

_DETAILS: Final = (
    (r"cuMemAlloc(Async|FromPoolAsync|Host|Managed)?|cuMemHost(Alloc|Register)", "BYTES(bytesize)"),
    (r"cuMemAllocPitch", "AREA(WidthInBytes, Height, 1)"),
    (r"cuMemCreate|cuLinkAddData", "BYTES(size)"),
    (r"cuMemPrefetchAsync", "BYTES(count)"),
    (r"cuMemsetD8(Async)?", "BYTES(N)"),
    (r"cuMemsetD16(Async)?", "AREA(N, 1, 2)"),
    (r"cuMemsetD32(Async)?", "AREA(N, 1, 4)"),
    (r"cuMemsetD2D8(Async)?", "AREA(Width, Height, 1)"),
    (r"cuMemsetD2D16(Async)?", "AREA(Width, Height, 2)"),
    (r"cuMemsetD2D32(Async)?", "AREA(Width, Height, 4)"),
    (r"cuMemcpy(Async)?", "COPY(dst, src, ByteCount)"),
    (r"cuMemcpyWithAttributesAsync", "COPY(dst, src, size)"),
    (r"cuMemcpyHtoD(Async)?", "COPY(dstDevice, srcHost, ByteCount)"),
    (r"cuMemcpyDtoH(Async)?", "COPY(dstHost, srcDevice, ByteCount)"),
    (r"cuMemcpyDtoD(Async)?|cuMemcpyPeer(Async)?", "COPY(dstDevice, srcDevice, ByteCount)"),
    (r"cuMemcpyHtoA(Async)?", "COPY(dstArray, srcHost, ByteCount)"),
    (r"cuMemcpyAtoH(Async)?", "COPY(dstHost, srcArray, ByteCount)"),
    (r"cuMemcpyDtoA", "COPY(dstArray, srcDevice, ByteCount)"),
    (r"cuMemcpyAtoD", "COPY(dstDevice, srcArray, ByteCount)"),
    (r"cuMemcpyAtoA", "COPY(dstArray, srcArray, ByteCount)"),
    (r"cuMemcpy2D(Async|Unaligned)?", "BOX(pCopy, 1)"),
    (r"cuMemcpy3D(Peer)?(Async)?", "BOX(pCopy, pCopy->Depth)"),
    (r"cuMemcpyBatchAsync", "BATCH(dsts, srcs, sizes, count)"),
    (r"cuMemcpy3D(Batch|WithAttributes)Async", "PARTS()"),
    (r"cuArrayCreate", "FLAT(pAllocateArray)"),
    (r"cuArray3DCreate", "DEEP(pAllocateArray, 1)"),
    (r"cuMipmappedArrayCreate", "DEEP(pMipmappedArrayDesc, numMipmapLevels)"),
    (r"cuLaunch(Cooperative)?Kernel", f"LAUNCH(f, {_GEOMETRY})"),
    (r"cuLaunchKernelEx", "CONFIGURED(f, config)"),
    (r"cuLaunch|cuLaunchGrid(Async)?", "KERNEL(f)"),
    (r"cuModuleLoad(Data(Ex)?|FatBinary)?", "IMAGE(module)"),
    (r"cuLibraryLoad(Data|FromFile)", "IMAGE(library)"),
)


def detail_of(name: str) -> str:
    """Return what is said of calls of a function, whatever its version; or nothing."""
    for pattern, detail in _DETAILS:
        if re.fullmatch(pattern, name):
            return detail
    return ""
