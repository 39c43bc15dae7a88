"""A program of CUDA 12's wheels: NVRTC compiles, the runtime allocates and copies, the driver API launches."""

from __future__ import annotations

import ctypes
import sys

SOURCE = b"""
extern "C" __global__ void scale(float *data, float factor, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] *= factor;
}
"""
COUNT = 10_000


def check(result: int, what: str) -> None:
    if result:
        sys.exit(f"{what}: error {result}")


def compile_source(nvrtc: ctypes.CDLL) -> bytes:
    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"scale.cu", 0, None, None), "create")
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_75")
    check(nvrtc.nvrtcCompileProgram(program, 1, options), "compile")
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)), "PTX size")
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetPTX(program, ptx), "PTX")
    return ptx.value


def main(runtime_path: str, nvrtc_path: str) -> None:
    runtime = ctypes.CDLL(runtime_path)
    driver = ctypes.CDLL("libcuda.so.1")
    ptx = compile_source(ctypes.CDLL(nvrtc_path))
    values = (ctypes.c_float * COUNT)(*range(COUNT))
    bytes_ = ctypes.c_size_t(ctypes.sizeof(values))
    device = ctypes.c_void_p()
    check(runtime.cudaMalloc(ctypes.byref(device), bytes_), "cudaMalloc")
    check(runtime.cudaMemcpy(device, values, bytes_, 1), "cudaMemcpy in")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), ptx), "cuModuleLoadData")
    check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"scale"), "cuModuleGetFunction")
    factor, count = ctypes.c_float(3.0), ctypes.c_int(COUNT)
    arguments = (ctypes.c_void_p * 3)(ctypes.addressof(device), ctypes.addressof(factor), ctypes.addressof(count))
    grid = (COUNT + 127) // 128
    check(driver.cuLaunchKernel(function, grid, 1, 1, 128, 1, 1, 0, None, arguments, None), "cuLaunchKernel")
    check(runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    check(runtime.cudaMemcpy(values, device, bytes_, 2), "cudaMemcpy out")
    wrong = [i for i in range(COUNT) if values[i] != 3.0 * i]
    if wrong:
        sys.exit(f"element {wrong[0]} is {values[wrong[0]]}")
    check(runtime.cudaFree(device), "cudaFree")
    print("ok")


main(*sys.argv[1:])
