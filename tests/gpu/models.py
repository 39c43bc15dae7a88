"""PyTorch's ways of using a GPU, timed: one line of JSON for each workload, as kernels.cu writes them.

    python models.py [--divisor N] [--only WORD]

``seconds`` are of the calling thread per step, device waited for; ``digest`` is of what was computed, with
deterministic algorithms, and must not depend on the way to the GPU.  It needs PyTorch alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable

# Before the first product: cuBLAS computes the same in every run only with a workspace of its own.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Inductor's own processes do not always end with the program, natively neither.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REPETITIONS = 10
WARM_UP = 3

Step = Callable[[], Tensor]


class Residual(nn.Module):
    """Two 3x3 convolutions with normalisation beside a way past them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, wider, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(wider)
        self.second = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(wider)
        self.past = nn.Conv2d(channels, wider, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.past(x))


def residual_network() -> nn.Module:
    """As deep as ResNet-18."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for wider, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Residual(channels, wider, stride))
        channels = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def transformer(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def product(dtype: torch.dtype, divisor: int) -> Step:
    """cuBLAS."""
    size = 4096 // divisor
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))

    def step() -> Tensor:
        for _ in range(9):
            torch.matmul(a, b)
        return torch.matmul(a, b)

    return step


def image_training(divisor: int) -> Step:
    network = residual_network().cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(max(2, 64 // divisor), 3, 64, 64, device="cuda")
    labels = torch.randint(0, 1000, (len(images),), device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def text_training(divisor: int) -> Step:
    network = transformer(512, 6).cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    words = torch.randn(max(1, 16 // divisor), 256, 512, device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (network(words) - words).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def inference(divisor: int) -> tuple[nn.Module, Tensor]:
    """One sequence, as when somebody waits for the answer: many small kernels."""
    network = transformer(768, 12).cuda().to(torch.bfloat16).eval()
    return network, torch.randn(1, max(8, 128 // divisor), 768, device="cuda", dtype=torch.bfloat16)


def eager_inference(divisor: int) -> Step:
    network, words = inference(divisor)
    return lambda: network(words)


def captured_inference(divisor: int) -> Step:
    network, words = inference(divisor)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            network(words)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = network(words)

    def step() -> Tensor:
        graph.replay()
        return result

    return step


def compiled_inference(divisor: int) -> Step:
    """Kernels of Triton's."""
    network, words = inference(divisor)
    compiled = torch.compile(network)
    return lambda: compiled(words)  # type: ignore[no-any-return]


def tiny_kernels(divisor: int) -> Step:
    x = torch.zeros(1, device="cuda")

    def step() -> Tensor:
        for _ in range(10000 // divisor):
            x.add_(1)
        return x.clone()

    return step


WORKLOADS: dict[str, tuple[Callable[[int], Step], bool]] = {
    "matrix product by cuBLAS, float32": (lambda divisor: product(torch.float32, divisor), False),
    "matrix product by cuBLAS, bfloat16": (lambda divisor: product(torch.bfloat16, divisor), False),
    "residual network, training step": (image_training, True),
    "transformer, training step with AdamW": (text_training, True),
    "transformer, inference": (eager_inference, False),
    "transformer, inference by a graph": (captured_inference, False),
    "transformer, inference compiled": (compiled_inference, False),
    "10,000 tiny kernels of PyTorch's": (tiny_kernels, False),
}


def measure(name: str, divisor: int) -> dict[str, object]:
    prepare, gradients = WORKLOADS[name]
    torch.manual_seed(0)
    with torch.set_grad_enabled(gradients):
        step = prepare(divisor)
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        seconds = []
        for _ in range(REPETITIONS):
            begun = time.perf_counter()
            result = step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        digest = hashlib.sha256(result.float().cpu().numpy().tobytes()).hexdigest()[:16]
    return {"name": name, "seconds": seconds, "digest": digest}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--divisor", type=int, default=1, help="make everything smaller")
    parser.add_argument("--only", default="", help="workloads with this in their name")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True, warn_only=True)
    for name in WORKLOADS:
        if arguments.only not in name:
            continue
        try:
            told = measure(name, arguments.divisor)
        except Exception as error:
            told = {"name": name, "error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
