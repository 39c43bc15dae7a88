"""Why functions are not there: what a caller is told."""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.model import Unsupported

GRAPHICS: Final = Unsupported("graphics interoperability needs the GPU in this machine")
GRAPHS: Final = Unsupported("external semaphores as nodes of graphs have no names here")
TEXTURES: Final = Unsupported(
    "sparse arrays and arrays of other APIs are not there; the attribute for sparse arrays is 0"
)
EXTERNAL: Final = Unsupported("memory and semaphores of other APIs live in this machine")
DMABUF: Final = Unsupported(
    "a descriptor that drivers of this machine use is none of a GPU in another; the attribute is 0"
)
NO_HEADER: Final = Unsupported("CUDA 13.3 alone has it, and it is in no header that was at hand")
DIAGNOSTICS: Final = Unsupported("core dumps, checkpoints and driver logs stay on the GPU's node")
BATCH: Final = Unsupported("decompression by the GPU is not there; the attribute for its algorithms is 0")
RDMA: Final = Unsupported("GPUDirect RDMA needs the GPU in this machine")
NARROW: Final = Unsupported("the 32-bit form of CUDA 2; since CUDA 3.2 programs use its successor")
DEPRECATED: Final = Unsupported("left CUDA in version 12; drivers refuse it, too")
WINDOWS: Final = Unsupported("it is there on Windows only")
COOPERATION: Final = Unsupported("left CUDA in version 13; a grid can't span devices over remoting")
UNIFIED: Final = Unsupported("a function of this machine's program is none of a remote GPU; the attribute for it is 0")
LOCATION: Final = Unsupported("CUDA 13.4 alone has it, and its structure is in no header that was at hand")
