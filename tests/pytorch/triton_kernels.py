"""Kernels in Triton, as users write them; Triton reads their source from this file."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_softly(x, y, result, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(x + at, mask=inside)
    b = tl.load(y + at, mask=inside)
    # tanh by its exponential function.
    e = tl.exp(2 * a)
    tl.store(result + at, (e - 1) / (e + 1) + b, mask=inside)


def add_softly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    _add_softly[(triton.cdiv(x.numel(), 256),)](x, y, result, x.numel(), BLOCK=256)
    return result


@triton.jit
def _matrix_product(x, y, result, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for first in range(0, K, BLOCK):
        k = first + tl.arange(0, BLOCK)
        a = tl.load(x + row[:, None] * K + k[None, :])
        b = tl.load(y + k[:, None] * N + column[None, :])
        total += tl.dot(a, b)
    tl.store(result + row[:, None] * N + column[None, :], total)


def matrix_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.empty(x.shape[0], y.shape[1], device=x.device, dtype=torch.float32)
    blocks = (x.shape[0] // 32, y.shape[1] // 32)
    _matrix_product[blocks](x, y, result, x.shape[1], y.shape[1], BLOCK=32)
    return result
