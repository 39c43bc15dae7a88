"""Arrays and mipmapped arrays, of the chapter about memory."""

# ruff: noqa: E501 - a prototype is one string

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.functions.forms import CALLED, entry, marshalled

ENTRIES: Final = (
    entry(
        1,
        "cuArray3DCreate",
        2000,
        "cuArray3DCreate",
        CALLED,
        "CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray",
    ),
    marshalled(
        2,
        "cuArray3DCreate",
        3020,
        "cuArray3DCreate_v2",
        "CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v2 *pAllocateArray",
        "",
    ),
    entry(
        3,
        "cuArray3DGetDescriptor",
        2000,
        "cuArray3DGetDescriptor",
        CALLED,
        "CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray",
    ),
    marshalled(
        4,
        "cuArray3DGetDescriptor",
        3020,
        "cuArray3DGetDescriptor_v2",
        "CUDA_ARRAY3D_DESCRIPTOR_v2 *pArrayDescriptor, CUarray hArray",
        "",
    ),
    entry(
        5,
        "cuArrayCreate",
        2000,
        "cuArrayCreate",
        CALLED,
        "CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray",
    ),
    marshalled(
        6,
        "cuArrayCreate",
        3020,
        "cuArrayCreate_v2",
        "CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v2 *pAllocateArray",
        "",
    ),
    marshalled(7, "cuArrayDestroy", 2000, "cuArrayDestroy", "CUarray hArray", "drop:hArray wait"),
    entry(
        8,
        "cuArrayGetDescriptor",
        2000,
        "cuArrayGetDescriptor",
        CALLED,
        "CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray",
    ),
    marshalled(
        9,
        "cuArrayGetDescriptor",
        3020,
        "cuArrayGetDescriptor_v2",
        "CUDA_ARRAY_DESCRIPTOR_v2 *pArrayDescriptor, CUarray hArray",
        "",
    ),
    marshalled(
        10,
        "cuArrayGetMemoryRequirements",
        11060,
        "cuArrayGetMemoryRequirements",
        "CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 *memoryRequirements, CUarray array, CUdevice device",
        "",
    ),
    marshalled(
        11,
        "cuArrayGetPlane",
        11020,
        "cuArrayGetPlane",
        "CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx",
        "",
    ),
    marshalled(
        12,
        "cuArrayGetSparseProperties",
        11010,
        "cuArrayGetSparseProperties",
        "CUDA_ARRAY_SPARSE_PROPERTIES_v1 *sparseProperties, CUarray array",
        "",
    ),
    marshalled(
        447,
        "cuMipmappedArrayCreate",
        5000,
        "cuMipmappedArrayCreate",
        "CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v2 *pMipmappedArrayDesc, unsigned int numMipmapLevels",
        "",
    ),
    marshalled(
        448,
        "cuMipmappedArrayDestroy",
        5000,
        "cuMipmappedArrayDestroy",
        "CUmipmappedArray hMipmappedArray",
        "drop:hMipmappedArray wait",
    ),
    marshalled(
        449,
        "cuMipmappedArrayGetLevel",
        5000,
        "cuMipmappedArrayGetLevel",
        "CUarray *pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level",
        "",
    ),
    marshalled(
        450,
        "cuMipmappedArrayGetMemoryRequirements",
        11060,
        "cuMipmappedArrayGetMemoryRequirements",
        "CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 *memoryRequirements, CUmipmappedArray mipmap, CUdevice device",
        "",
    ),
    marshalled(
        451,
        "cuMipmappedArrayGetSparseProperties",
        11010,
        "cuMipmappedArrayGetSparseProperties",
        "CUDA_ARRAY_SPARSE_PROPERTIES_v1 *sparseProperties, CUmipmappedArray mipmap",
        "",
    ),
)
