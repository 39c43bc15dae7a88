"""Elements of matrices, as tests of tensor core instructions write them into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

E4M3 = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48}
E5M2 = {0: 0x00, 1: 0x3C, 2: 0x40, 3: 0x42, 4: 0x44}


def encode_eight(table: dict[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    def encode(values: np.ndarray) -> np.ndarray:
        sizes = np.array([table[k] for k in range(5)], np.uint8)[np.abs(values).astype(int)]
        return sizes | np.where(values < 0, 128, 0).astype(np.uint8)

    return encode


@dataclass(frozen=True)
class Kind:
    """Elements: how they are written into memory, and the numbers that products are exact for."""

    name: str
    bytes: int
    encode: Callable[[np.ndarray], np.ndarray]
    low: int = -4
    high: int = 4

    @property
    def depth(self) -> int:
        """Elements in 32 bytes."""
        return 32 // self.bytes

    def random(self, rng: np.random.Generator, rows: int, depth: int = 0) -> np.ndarray:
        return rng.integers(self.low, self.high + 1, (rows, depth or self.depth)).astype(np.float64)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("f16", 2, lambda values: values.astype(np.float16)),
        Kind("bf16", 2, lambda values: (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)),
        # The thirteen lowest bits are not looked at.
        Kind("tf32", 4, lambda values: values.astype(np.float32).view(np.uint32) | 0x1FFF),
        Kind("e4m3", 1, encode_eight(E4M3)),
        Kind("e5m2", 1, encode_eight(E5M2)),
        Kind("s8", 1, lambda values: values.astype(np.int8), -128, 127),
        Kind("u8", 1, lambda values: values.astype(np.uint8), 0, 255),
    )
}
