"""The operations that operations.py checks: a name, inputs, a function, and how near its results must be.

Nearly all are functions of tensors: the same function is called with tensors on the processor and with their copies on
the device.  The others are checks of the device itself (streams, events, graphs, memory, random numbers), which raise
AssertionError.  Inputs come from generators with fixed seeds on the processor, small enough for a software GPU.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

CUDA = torch.device("cuda", 0)

#: Relative and absolute distance allowed, by the type computed in.  Sums may go in another order, and the fast forms
#: of division and of exponential functions are a few units in the last place away.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
    torch.complex64: (1e-4, 1e-4),
    torch.complex128: (1e-9, 1e-9),
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """``function`` is called with what ``inputs`` makes; a check has no inputs and returns nothing.

    ``compiles``: torch.compile can make one graph of it.  ``tolerance`` (relative, absolute) replaces TOLERANCES.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]] | None
    compiles: bool = True
    tolerance: tuple[float, float] | None = None


def run(operation: Operation, mode: str) -> None:
    """Compute on both and compare.  Raises AssertionError where they differ, and whatever PyTorch raises."""
    if operation.inputs is None:
        operation.function()
        torch.cuda.synchronize()
        return
    torch.manual_seed(0)
    expected = operation.function(*operation.inputs())
    function = operation.function
    if mode == "compiled":
        torch._dynamo.reset()
        # Folding constants runs kernels of the wheel while it compiles.
        torch._inductor.config.joint_graph_constant_folding = False
        function = torch.compile(function, dynamic=False, fullgraph=False)
    torch.manual_seed(0)
    compare(function(*[moved(value) for value in operation.inputs()]), expected, operation.tolerance)


def moved(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one) for one in value)
    if isinstance(value, torch.nn.Module):
        return value.to(CUDA)
    if isinstance(value, Tensor):
        there = value.detach().to(CUDA)
        return there.requires_grad_(value.requires_grad)
    return value


def compare(got: Any, expected: Any, tolerance: tuple[float, float] | None) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), f"{len(got)} results, expected {len(expected)}"
        for one, other in zip(got, expected, strict=True):
            compare(one, other, tolerance)
    elif isinstance(expected, Tensor):
        assert got.device.type == "cuda", f"the result is on {got.device}"
        relative, absolute = tolerance or TOLERANCES.get(expected.dtype, (0.0, 0.0))
        if expected.is_sparse:
            got, expected = got.to_dense(), expected.to_dense()
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=relative, atol=absolute, equal_nan=True)
    elif isinstance(expected, float):
        assert math.isclose(got, expected, rel_tol=1e-4), f"{got}, expected {expected}"
    else:
        assert got == expected, f"{got}, expected {expected}"


# ---- inputs ----


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(*shape, dtype=dtype, generator=generator)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=generator, dtype=torch.float64) * 3 + 0.1).to(dtype)


def unit(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator) * 1.8 - 0.9


def integers(*shape: int, low: int = 0, high: int = 100, dtype: torch.dtype = torch.int64, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def values(dtype: torch.dtype, *shape: int, seed: int = 1) -> Tensor:
    if dtype == torch.bool:
        return integers(*shape, high=2, seed=seed).bool()
    if dtype.is_floating_point or dtype.is_complex:
        return normal(*shape, dtype=dtype, seed=seed)
    return integers(*shape, dtype=dtype, seed=seed)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def definite(size: int) -> Tensor:
    """Symmetric and well conditioned."""
    matrix = normal(size, size)
    return matrix @ matrix.T / size + torch.eye(size)


# ---- tables: function, and the inputs that it is called with ----

VECTOR = (1000,)


def creation() -> Iterator[Operation]:
    """``like`` says where: a tensor on the processor or on the device."""
    table: dict[str, Callable[[Tensor], Any]] = {
        "zeros": lambda like: torch.zeros(64, 3, device=like.device),
        "ones int64": lambda like: torch.ones(64, dtype=torch.int64, device=like.device),
        "full float16": lambda like: torch.full((33,), 2.5, dtype=torch.float16, device=like.device),
        "arange": lambda like: torch.arange(3, 100, 7, device=like.device),
        "linspace": lambda like: torch.linspace(-1, 1, 101, device=like.device),
        "logspace": lambda like: torch.logspace(-1, 1, 21, device=like.device),
        "eye": lambda like: torch.eye(7, 9, device=like.device),
        "tril_indices": lambda like: torch.tril_indices(5, 5, device=like.device),
        "zero_": lambda like: like.clone().zero_(),
        "fill_": lambda like: like.clone().fill_(3.5),
        "tensor from list": lambda like: torch.tensor([1.5, 2.5], device=like.device),
    }
    for name, function in table.items():
        yield Operation(name=name, function=function, inputs=lambda: (normal(8),))


def movement() -> Iterator[Operation]:
    table: dict[str, Callable[[Tensor], Any]] = {
        "clone": lambda x: x.clone(),
        "copy_": lambda x: torch.empty_like(x).copy_(x),
        "view and clone of a part": lambda x: x.view(20, 50)[3:7].clone(),
        "transpose contiguous": lambda x: x.view(20, 50).t().contiguous(),
        "permute contiguous": lambda x: x.view(10, 4, 25).permute(2, 0, 1).contiguous(),
        "slice with step": lambda x: x[3:900:7].clone(),
        "expand": lambda x: x.view(1000, 1).expand(1000, 3).contiguous(),
        "cat": lambda x: torch.cat([x, x[:5], x[7:9]]),
        "stack": lambda x: torch.stack([x, -x], dim=1),
        "repeat": lambda x: x[:10].repeat(3, 2),
        "repeat_interleave": lambda x: x[:10].repeat_interleave(3),
        "flip": lambda x: x.view(20, 50).flip(1),
        "roll": lambda x: x.roll(17),
        "pad reflect": lambda x: F.pad(x.view(1, 10, 100), (3, 4), mode="reflect"),
        "pad constant": lambda x: F.pad(x.view(20, 50), (1, 2, 3, 4), value=7.0),
        "split and chunk": lambda x: [*x.split(300), *x.chunk(3)],
        "tril": lambda x: x.view(20, 50).tril(-2),
        "diagonal and diag_embed": lambda x: torch.diag_embed(x.view(20, 50).diagonal()),
        "channels_last": lambda x: x.view(1, 4, 10, 25).to(memory_format=torch.channels_last),
        "as_strided": lambda x: x.as_strided((30, 30), (7, 3)).contiguous(),
    }
    for name, function in table.items():
        yield Operation(name=name, function=function, inputs=lambda: (normal(*VECTOR),))
    for source, target in [
        (torch.float32, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float32, torch.int64),
        (torch.float16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.int32),
        (torch.int32, torch.uint8),
        (torch.float32, torch.complex64),
        (torch.float32, torch.float8_e4m3fn),
    ]:
        yield Operation(
            name=f"convert {short(source)} to {short(target)}",
            function=lambda x, target=target: x.to(target).to(torch.float32 if "float8" in short(target) else target),
            inputs=lambda source=source: (values(source, *VECTOR),),
        )


def unary() -> Iterator[Operation]:
    anywhere = ["abs", "neg", "exp", "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "floor", "ceil", "round", "trunc"]
    anywhere += ["sign", "exp2", "expm1", "atan", "asinh", "sinh", "cosh", "square", "isfinite", "signbit", "frac"]
    for name in anywhere:
        yield Operation(name=name, function=getattr(torch, name), inputs=lambda: (normal(*VECTOR),))
    for name in ["log", "sqrt", "rsqrt", "reciprocal", "log2", "log10", "log1p", "lgamma", "digamma", "tan"]:
        yield Operation(name=name, function=getattr(torch, name), inputs=lambda: (positive(*VECTOR),))
    for name in ["asin", "acos", "atanh", "erfinv", "logit"]:
        function = getattr(torch, name)
        yield Operation(
            name=name,
            function=(lambda x: torch.logit(x.abs())) if name == "logit" else function,
            inputs=lambda: (unit(*VECTOR),),
        )
    for name in [
        "relu",
        "gelu",
        "silu",
        "softplus",
        "hardswish",
        "leaky_relu",
        "elu",
        "mish",
        "hardtanh",
        "logsigmoid",
    ]:
        yield Operation(name=name, function=getattr(F, name), inputs=lambda: (normal(*VECTOR),))
    for dtype in [torch.float64, torch.float16, torch.bfloat16]:
        for name in ["exp", "gelu", "sqrt"]:
            function = getattr(torch, name, None) or getattr(F, name)
            yield Operation(
                name=f"{name} {short(dtype)}",
                function=function,
                inputs=lambda dtype=dtype: (positive(*VECTOR, dtype=dtype),),
            )
    yield Operation(name="bitwise_not", function=torch.bitwise_not, inputs=lambda: (integers(*VECTOR),))
    yield Operation(name="logical_not", function=torch.logical_not, inputs=lambda: (integers(*VECTOR, high=2),))
    yield Operation(name="complex exp", function=torch.exp, inputs=lambda: (normal(100, dtype=torch.complex64),))
    yield Operation(name="complex abs", function=torch.abs, inputs=lambda: (normal(100, dtype=torch.complex64),))
    yield Operation(name="nan_to_num", function=lambda x: torch.nan_to_num(torch.log(x)), inputs=lambda: (unit(99),))
    yield Operation(name="clamp", function=lambda x: x.clamp(-0.5, 0.7), inputs=lambda: (normal(*VECTOR),))


def binary() -> Iterator[Operation]:
    for dtype in [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.complex64,
    ]:
        for name in ["add", "mul"]:
            yield Operation(
                name=f"{name} {short(dtype)}",
                function=getattr(torch, name),
                inputs=lambda dtype=dtype: (values(dtype, *VECTOR), values(dtype, *VECTOR, seed=2)),
            )
    for name in ["sub", "maximum", "minimum", "atan2", "hypot", "eq", "lt", "ge", "copysign", "logaddexp"]:
        yield Operation(
            name=name, function=getattr(torch, name), inputs=lambda: (normal(*VECTOR), normal(*VECTOR, seed=2))
        )
    for name in ["div", "pow", "fmod", "remainder", "floor_divide"]:
        yield Operation(
            name=name, function=getattr(torch, name), inputs=lambda: (positive(*VECTOR), positive(*VECTOR, seed=2))
        )
    for name in ["bitwise_and", "bitwise_xor", "gcd", "lcm"]:
        yield Operation(
            name=name,
            function=getattr(torch, name),
            inputs=lambda: (integers(*VECTOR, low=1), integers(*VECTOR, low=1, seed=2)),
        )
    yield Operation(
        name="shift left", function=lambda x, y: x << y, inputs=lambda: (integers(99), integers(99, high=9, seed=2))
    )
    yield Operation(
        name="integer division",
        function=lambda x, y: [x // y, x % y, x / y],
        inputs=lambda: (integers(*VECTOR, low=-100), integers(*VECTOR, low=1, high=9, seed=2)),
    )
    yield Operation(
        name="broadcast", function=lambda x, y: x + y, inputs=lambda: (normal(30, 1, 4), normal(7, 1, seed=2))
    )
    yield Operation(name="scalar", function=lambda x: 3 * x - 1, inputs=lambda: (normal(*VECTOR),))
    yield Operation(name="add_ in place", function=lambda x: x.clone().add_(2), inputs=lambda: (normal(*VECTOR),))
    yield Operation(
        name="mixed types", function=lambda x, y: x * y, inputs=lambda: (normal(99), integers(99, dtype=torch.int32))
    )
    yield Operation(
        name="where",
        function=lambda x, y: torch.where(x > y, x, y * 2),
        inputs=lambda: (normal(*VECTOR), normal(*VECTOR, seed=2)),
    )
    yield Operation(
        name="addcmul and lerp",
        function=lambda x, y: [torch.addcmul(x, x, y, value=0.5), torch.lerp(x, y, 0.3)],
        inputs=lambda: (normal(*VECTOR), normal(*VECTOR, seed=2)),
    )
    yield Operation(
        name="foreach",
        function=lambda x, y: torch._foreach_addcdiv([x, y], [x, x], [y, y], 0.1),
        inputs=lambda: (positive(99), positive(99, seed=2)),
    )


def reductions() -> Iterator[Operation]:
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]:
        yield Operation(
            name=f"sum {short(dtype)}", function=lambda x: x.sum(), inputs=lambda dtype=dtype: (values(dtype, 40, 70),)
        )
    table: dict[str, Callable[[Tensor], Any]] = {
        "sum of rows": lambda x: x.sum(1),
        "sum of columns": lambda x: x.sum(0),
        "sum of three dimensions": lambda x: x.view(4, 10, 70).sum((0, 2)),
        "mean": lambda x: x.mean(1),
        "prod": lambda x: x.clamp(0.5, 1.5).prod(1),
        "max": lambda x: x.max(),
        "max with index": lambda x: x.max(1),
        "argmin": lambda x: x.argmin(0),
        "amax": lambda x: x.amax((0, 1)),
        "any and all": lambda x: [(x > 3).any(1), (x < 3).all(0)],
        "var and std": lambda x: [x.var(1), x.std()],
        "norm": lambda x: [x.norm(), torch.linalg.vector_norm(x, 3, dim=1)],
        "logsumexp": lambda x: x.logsumexp(1),
        "cumsum": lambda x: x.cumsum(1),
        "cumprod": lambda x: x.clamp(0.5, 1.5).cumprod(1),
        "cummax": lambda x: x.cummax(1),
        "count_nonzero": lambda x: (x > 0).count_nonzero(1),
        "histc": lambda x: x.histc(10, -2, 2),
        "median": lambda x: x.median(1).values,
        "quantile": lambda x: x.quantile(0.3, dim=1),
        "diff": lambda x: x.diff(dim=1),
        "softmax": lambda x: x.softmax(1),
        "log_softmax": lambda x: x.log_softmax(0),
        "item": lambda x: float(x.abs().sum().item()),
    }
    for name, function in table.items():
        yield Operation(name=name, function=function, inputs=lambda: (normal(40, 70),))
    yield Operation(
        name="bincount", function=lambda x: x.bincount(minlength=10), inputs=lambda: (integers(500, high=9),)
    )
    yield Operation(
        name="softmax float16", function=lambda x: x.softmax(1), inputs=lambda: (normal(40, 70, dtype=torch.float16),)
    )
    yield Operation(name="softmax long rows", function=lambda x: x.softmax(1), inputs=lambda: (normal(3, 5000),))
    yield Operation(name="sum of many", function=lambda x: x.sum(), inputs=lambda: (positive(200_000),))


def indexing() -> Iterator[Operation]:
    index = lambda high=40: integers(30, high=high, seed=3)  # noqa: E731
    table: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "index_select": lambda x, i: x.index_select(0, i),
        "advanced index": lambda x, i: x[i, i],
        "gather": lambda x, i: x.gather(0, i.view(30, 1).expand(30, 70)),
        "scatter": lambda x, i: torch.zeros_like(x).scatter(0, i.unique().view(-1, 1), x),
        "scatter_add": lambda x, i: x.scatter_add(0, i.view(30, 1).expand(30, 70), x[:30]),
        "scatter_reduce": lambda x, i: x[:, 0].scatter_reduce(0, i, x[:30, 1], "amax"),
        "index_add": lambda x, i: x.index_add(0, i, x[:30]),
        "index_put accumulate": lambda x, i: x.index_put((i,), x[:30], accumulate=True),
        "index_copy": lambda x, i: x.index_copy(0, i.unique(), x[: len(i.unique())]),
        "masked_select": lambda x, i: x.masked_select(x > 0.5),
        "masked_fill": lambda x, i: x.masked_fill(x > 0.5, -1.0),
        "masked_scatter": lambda x, i: x.masked_scatter(x > 0.5, -x),
        "nonzero": lambda x, i: (x > 1).nonzero(),
        "take_along_dim": lambda x, i: x.take_along_dim(x.argsort(1), 1),
        "one_hot": lambda x, i: F.one_hot(i, 40),
        "embedding": lambda x, i: F.embedding(i, x),
        "embedding_bag": lambda x, i: F.embedding_bag(i.view(6, 5), x, mode="mean"),
        "searchsorted": lambda x, i: torch.searchsorted(x[:, 0].sort().values, x[:, 1].contiguous()),
        "bucketize": lambda x, i: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)),
        "unique": lambda x, i: torch.unique(i, return_counts=True),
        "isin": lambda x, i: torch.isin(torch.arange(50, device=i.device), i),
        "sort": lambda x, i: x.sort(1),
        "sort descending stable": lambda x, i: i.sort(descending=True, stable=True),
        "argsort": lambda x, i: x.argsort(0),
        "sort of many": lambda x, i: x.flatten().sort().values,
        "topk": lambda x, i: x.topk(5, dim=1),
        "kthvalue": lambda x, i: x.kthvalue(7, dim=1).values,
        "meshgrid and cartesian_prod": lambda x, i: torch.cartesian_prod(i[:4], i[4:7]),
    }
    for name, function in table.items():
        yield Operation(name=name, function=function, inputs=lambda: (normal(40, 70), index()))


def linear_algebra() -> Iterator[Operation]:
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]:
        for size in [5, 64, 200]:
            yield Operation(
                name=f"mm {short(dtype)} {size}",
                function=torch.mm,
                inputs=lambda dtype=dtype, size=size: (
                    normal(size, size, dtype=dtype),
                    normal(size, size, dtype=dtype, seed=2),
                ),
                # Sums of `size` products, rounded to the type once, or where the library splits them.
                tolerance={torch.bfloat16: (3e-2, 3e-1), torch.float16: (1e-2, 3e-2)}.get(dtype, (1e-3, 1e-3)),
            )
    three: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "mm transposed": lambda x, y, v: x.t() @ y.t(),
        "addmm": lambda x, y, v: torch.addmm(v, x, y),
        "linear": F.linear,
        "mv": lambda x, y, v: x @ v,
        "dot": lambda x, y, v: v.dot(v),
        "outer": lambda x, y, v: torch.outer(v, v),
        "bmm": lambda x, y, v: torch.bmm(x.view(4, 12, 48), y.view(4, 48, 12)),
        "baddbmm": lambda x, y, v: torch.baddbmm(y.view(4, 48, 12)[:, :12], x.view(4, 12, 48), y.view(4, 48, 12)),
        "einsum": lambda x, y, v: torch.einsum("ij,kj,j->ik", x, y, v),
        "matmul broadcast": lambda x, y, v: x.view(1, 48, 48) @ y.view(3, 16, 48).transpose(1, 2),
        "linalg.norm": lambda x, y, v: torch.linalg.norm(x),
        "trace": lambda x, y, v: x.trace(),
        "kron": lambda x, y, v: torch.kron(x[:4, :4], y[:3, :3]),
        "cross": lambda x, y, v: torch.linalg.cross(x[:, :3], y[:, :3]),
        "cdist": lambda x, y, v: torch.cdist(x, y),
    }
    for name, function in three.items():
        yield Operation(
            name=name,
            function=function,
            inputs=lambda: (normal(48, 48), normal(48, 48, seed=2), normal(48, seed=3)),
            tolerance=(1e-3, 1e-3),
        )
    solvers: dict[str, Callable[[Tensor], Any]] = {
        "inv": torch.linalg.inv,
        "solve": lambda a: torch.linalg.solve(a, a[:, :3] + 1),
        "cholesky": torch.linalg.cholesky,
        "qr": lambda a: torch.linalg.qr(a)[1].abs(),
        "svdvals": torch.linalg.svdvals,
        "eigvalsh": torch.linalg.eigvalsh,
        "det": torch.linalg.det,
        "solve_triangular": lambda a: torch.linalg.solve_triangular(a.tril(), a[:, :3] + 1, upper=False),
        "matrix_exp": lambda a: torch.linalg.matrix_exp(a / 4),
        "lstsq": lambda a: torch.linalg.lstsq(a, a[:, :3] + 1).solution,
    }
    for name, function in solvers.items():
        yield Operation(name=name, function=function, inputs=lambda: (definite(24),), tolerance=(1e-3, 1e-3))


def fourier_and_sparse() -> Iterator[Operation]:
    table: dict[str, Callable[[Tensor], Any]] = {
        "fft": lambda x: torch.fft.fft(x.to(torch.complex64)),
        "rfft": torch.fft.rfft,
        "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        "fft2": torch.fft.fft2,
        "fft of 100": lambda x: torch.fft.fft(x[:, :25].flatten()[:100]),
        "fft float64": lambda x: torch.fft.fft(x.double()).to(torch.complex64),
        "stft": lambda x: torch.stft(
            x.flatten(), 64, window=torch.ones(64, device=x.device), return_complex=True, center=False
        ),
    }
    for name, function in table.items():
        yield Operation(name=name, function=function, inputs=lambda: (normal(16, 32),), compiles=False)
    yield Operation(
        name="sparse coo times dense",
        function=lambda x, y: torch.sparse.mm((x * (x > 0.5)).to_sparse(), y),
        inputs=lambda: (normal(40, 30), normal(30, 8, seed=2)),
        compiles=False,
    )
    yield Operation(
        name="sparse csr times dense",
        function=lambda rows, columns, entries, y: torch.sparse_csr_tensor(rows, columns, entries, (3, 30)) @ y,
        inputs=lambda: (
            torch.tensor([0, 2, 3, 5]),
            torch.tensor([1, 7, 0, 3, 29]),
            normal(5),
            normal(30, 8, seed=2),
        ),
        compiles=False,
    )


def networks() -> Iterator[Operation]:
    image = lambda: normal(2, 8, 12, 12)  # noqa: E731
    convolutions: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (8, 8, 3, 3)),
        "conv2d stride": (lambda x, w: F.conv2d(x, w, stride=2), (8, 8, 3, 3)),
        "conv2d 1x1": (F.conv2d, (16, 8, 1, 1)),
        "conv2d depthwise": (lambda x, w: F.conv2d(x, w, groups=8, padding=1), (8, 1, 3, 3)),
        "conv2d float16": (lambda x, w: F.conv2d(x.half(), w.half(), padding=1), (8, 8, 3, 3)),
        "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (8, 4, 3, 3)),
        "conv1d": (lambda x, w: F.conv1d(x.flatten(2), w, padding=2), (4, 8, 5)),
        "conv3d": (lambda x, w: F.conv3d(x.view(2, 2, 4, 12, 12), w, padding=1), (3, 2, 3, 3, 3)),
    }
    for name, (function, shape) in convolutions.items():
        yield Operation(
            name=name,
            function=function,
            inputs=lambda shape=shape: (image(), normal(*shape, seed=2) / 5),
            tolerance=(1e-2, 1e-2),
        )
    layers: dict[str, Callable[[Tensor], Any]] = {
        "max_pool2d": lambda x: F.max_pool2d(x, 3, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 5),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "layer_norm": lambda x: F.layer_norm(x, (12, 12)),
        "group_norm": lambda x: F.group_norm(x, 4),
        "rms_norm": lambda x: F.rms_norm(x, (12,)),
        "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        "interpolate nearest": lambda x: F.interpolate(x, size=(20, 5)),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3),
        "grid_sample": lambda x: F.grid_sample(
            x, x[:, :2].permute(0, 2, 3, 1).clamp(-1, 1).contiguous(), align_corners=False
        ),
        "normalize": lambda x: F.normalize(x, dim=1),
        "glu": lambda x: F.glu(x, 1),
        "prelu": lambda x: F.prelu(x, torch.full((8,), 0.2, device=x.device)),
        "cosine_similarity": lambda x: F.cosine_similarity(x[0], x[1], dim=0),
        "mse and l1 loss": lambda x: [F.mse_loss(x[0], x[1]), F.l1_loss(x[0], x[1]), F.huber_loss(x[0], x[1])],
        "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        "kl_div": lambda x: F.kl_div(x[0].log_softmax(0), x[1].softmax(0), reduction="batchmean"),
        "dropout off": lambda x: F.dropout(x, 0.5, training=False),
    }
    for name, function in layers.items():
        yield Operation(name=name, function=function, inputs=lambda: (image(),))
    yield Operation(
        name="cross_entropy", function=F.cross_entropy, inputs=lambda: (normal(30, 10), integers(30, high=10))
    )
    attention = lambda dtype=torch.float32: tuple(normal(2, 4, 32, 16, dtype=dtype, seed=s) for s in (1, 2, 3))  # noqa: E731
    yield Operation(name="attention", function=F.scaled_dot_product_attention, inputs=attention, tolerance=(1e-3, 1e-3))
    yield Operation(
        name="attention causal float16",
        function=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        inputs=lambda: attention(torch.float16),
    )
    modules: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
        "LSTM": (lambda: torch.nn.LSTM(8, 16), (5, 3, 8)),
        "GRU": (lambda: torch.nn.GRU(8, 16), (5, 3, 8)),
        "transformer layer": (
            lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
            (2, 6, 16),
        ),
    }
    for name, (make, shape) in modules.items():
        yield Operation(
            name=name,
            function=lambda module, x: module(x)[0],
            inputs=lambda make=make, shape=shape: (seeded(make), normal(*shape)),
            tolerance=(1e-3, 1e-3),
            compiles=name == "transformer layer",
        )


def seeded(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(5)
    return make()


# ---- differentiation and training ----


def gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def differentiate(*inputs: Tensor) -> Any:
        leaves = [value.detach().requires_grad_() if value.is_floating_point() else value for value in inputs]
        return torch.autograd.grad(function(*leaves).square().sum(), [x for x in leaves if x.requires_grad])

    return differentiate


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 4))


def training(optimizer: Callable[..., torch.optim.Optimizer], model: torch.nn.Module, x: Tensor, y: Tensor) -> Any:
    steps = optimizer(model.parameters())
    for _ in range(3):
        steps.zero_grad()
        F.cross_entropy(model(x), y).backward()
        steps.step()
    return [parameter.detach() for parameter in model.parameters()]


def convolutional() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 4),
    )


def autograd() -> Iterator[Operation]:
    table: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
        "gradient of gelu": (F.gelu, lambda: (normal(99),)),
        "gradient of softmax": (lambda x: x.softmax(1), lambda: (normal(9, 30),)),
        "gradient of layer_norm": (lambda x: F.layer_norm(x, (30,)), lambda: (normal(9, 30),)),
        "gradient of linear": (F.linear, lambda: (normal(9, 30), normal(7, 30, seed=2), normal(7, seed=3))),
        "gradient of conv2d": (F.conv2d, lambda: (normal(2, 3, 8, 8), normal(4, 3, 3, 3, seed=2))),
        "gradient of embedding": (lambda w, i: F.embedding(i, w), lambda: (normal(20, 6), integers(9, high=20))),
        "gradient of max_pool2d": (lambda x: F.max_pool2d(x, 2), lambda: (normal(2, 3, 8, 8),)),
        "gradient of attention": (
            F.scaled_dot_product_attention,
            lambda: (normal(1, 2, 8, 8), normal(1, 2, 8, 8, seed=2), normal(1, 2, 8, 8, seed=3)),
        ),
        "gradient of index": (lambda x: x[::2, 3], lambda: (normal(9, 30),)),
        "gradient of cumsum": (lambda x: x.cumsum(1), lambda: (normal(9, 30),)),
    }
    for name, (function, inputs) in table.items():
        yield Operation(name=name, function=gradients(function), inputs=inputs, tolerance=(1e-3, 1e-3), compiles=False)
    optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    }
    for name, optimizer in optimizers.items():
        yield Operation(
            name=f"three steps of {name}",
            function=lambda model, x, y, optimizer=optimizer: training(optimizer, model, x, y),
            inputs=lambda: (seeded(perceptron), normal(16, 12), integers(16, high=4)),
            tolerance=(1e-2, 1e-3),
            compiles=False,
        )
    yield Operation(
        name="training a convolutional network",
        function=lambda model, x, y: training(lambda p: torch.optim.SGD(p, lr=0.05), model, x, y),
        inputs=lambda: (seeded(convolutional), normal(8, 1, 6, 6), integers(8, high=4)),
        tolerance=(1e-2, 1e-2),
        compiles=False,
    )
    yield Operation(
        name="inference of a perceptron",
        function=lambda model, x: model(x),
        inputs=lambda: (seeded(perceptron), normal(16, 12)),
        tolerance=(1e-3, 1e-3),
    )
    yield Operation(
        name="loss and gradient of a perceptron",
        function=lambda model, x, y: F.cross_entropy(model(x), y),
        inputs=lambda: (seeded(perceptron), normal(16, 12), integers(16, high=4)),
        tolerance=(1e-3, 1e-3),
    )


def special() -> Iterator[Operation]:
    """PyTorch compiles these by NVRTC when they are first used."""
    for name in ["i0e", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "airy_ai", "ndtri", "log_ndtr", "erfcx"]:
        function = getattr(torch.special, name)
        yield Operation(
            name=f"special.{name}",
            function=function,
            inputs=lambda name=name: (unit(99).abs() if name == "ndtri" else positive(99),),
            tolerance=(1e-4, 1e-5),
            compiles=False,
        )
    yield Operation(
        name="special.zeta",
        function=torch.special.zeta,
        inputs=lambda: (positive(99) + 1.1, positive(99, seed=2)),
        compiles=False,
    )
    yield Operation(
        name="special.chebyshev",
        function=lambda x: torch.special.chebyshev_polynomial_t(x, torch.tensor(3.0, device=x.device)),
        inputs=lambda: (unit(99),),
        compiles=False,
    )


# ---- checks of the device itself ----


def check_round_trip() -> None:
    for dtype in [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]:
        value = values(dtype, 1000)
        assert torch.equal(value.to(CUDA).cpu(), value)


def check_large_copy() -> None:
    value = integers(3_000_000, high=1 << 40)
    assert torch.equal(value.to(CUDA).cpu(), value)


def check_pinned() -> None:
    value = normal(10_000).pin_memory()
    assert value.is_pinned()
    there = value.to(CUDA, non_blocking=True)
    back = torch.empty(10_000, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, value)


def check_device_to_device() -> None:
    value = normal(10_000)
    there = torch.empty(10_000, device=CUDA)
    there.copy_(value.to(CUDA))
    assert torch.equal(there.cpu(), value)


def check_streams() -> None:
    value = normal(10_000)
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    ready = torch.cuda.Event()
    with torch.cuda.stream(first):
        there = value.to(CUDA)
        ready.record()
    with torch.cuda.stream(second):
        second.wait_event(ready)
        copy = there.clone()
        there.record_stream(second)
    second.synchronize()
    assert second.query()
    assert torch.equal(copy.cpu(), value)


def check_events() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    there = normal(100_000).to(CUDA)
    start.record()
    for _ in range(4):
        there = there.clone()
    end.record()
    end.synchronize()
    assert start.query()
    assert 0 <= start.elapsed_time(end) < 60_000


def check_graph_of_copies() -> None:
    source = torch.zeros(1000).to(CUDA)
    target = torch.empty_like(source)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(source)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        target.copy_(source)
    value = normal(1000)
    source.copy_(value)
    graph.replay()
    assert torch.equal(target.cpu(), value)


def check_graph_of_kernels() -> None:
    source = torch.ones(1000).to(CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _ = torch.exp(source) * 2 + source
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.exp(source) * 2 + source
    for seed in range(3):
        value = normal(1000, seed=seed)
        source.copy_(value)
        graph.replay()
        torch.testing.assert_close(result.cpu(), torch.exp(value) * 2 + value, rtol=1e-4, atol=1e-5)


def check_memory_statistics() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    there = torch.empty(1 << 20, dtype=torch.uint8, device=CUDA)
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert torch.cuda.max_memory_allocated() >= before + (1 << 20)
    del there
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["num_alloc_retries"] >= 0


def check_memory_information() -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
    there = torch.empty(256 << 20, dtype=torch.uint8, device=CUDA)
    assert free - torch.cuda.mem_get_info()[0] >= 256 << 20
    del there
    torch.cuda.empty_cache()


def check_out_of_memory() -> None:
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=CUDA)
    except torch.cuda.OutOfMemoryError:
        check_round_trip()
    else:
        raise AssertionError("a petabyte was allocated")


def check_properties() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert torch.cuda.get_device_capability(0) == (properties.major, properties.minor)
    assert torch.cuda.get_device_name(0) == properties.name
    assert properties.warp_size == 32
    assert properties.multi_processor_count > 0
    assert properties.max_threads_per_multi_processor >= 1024


def check_numpy() -> None:
    import numpy

    array = numpy.arange(12.0).reshape(3, 4)
    assert (torch.from_numpy(array).to(CUDA).cpu().numpy() == array).all()


def check_empty_tensor() -> None:
    assert torch.empty(0, 3, device=CUDA).cpu().shape == (0, 3)
    assert torch.empty(0, device=CUDA).clone().numel() == 0


def check_threads() -> None:
    import concurrent.futures

    def copy_there_and_back(seed: int) -> bool:
        value = normal(5000, seed=seed)
        return torch.equal(value.to(CUDA).clone().cpu(), value)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(copy_there_and_back, range(16)))


def check_storage() -> None:
    import io

    value = normal(100)
    file = io.BytesIO()
    torch.save(value.to(CUDA), file)
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cuda").cpu(), value)


def check_compiled_kernel() -> None:
    """A kernel in CUDA C++, compiled by NVRTC and loaded as a module."""
    source = """
    extern "C" __global__ void scale(float *to, const float *from, double factor, int count)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < count)
            to[i] = from[i] * (float)factor;
    }
    """
    kernel = torch.cuda._compile_kernel(source, "scale")
    value = normal(1000)
    there, result = value.to(CUDA), torch.empty(1000, device=CUDA)
    kernel((8, 1, 1), (128, 1, 1), (result, there, 2.5, 1000))
    torch.testing.assert_close(result.cpu(), value * 2.5)


def check_jiterator() -> None:
    code = "template <typename T> T plus_twice(T x, T y) { return x + 2 * y; }"
    x, y = normal(1000), normal(1000, seed=2)
    function = torch.cuda.jiterator._create_jit_fn(code)
    torch.testing.assert_close(function(x.to(CUDA), y.to(CUDA)).cpu(), x + 2 * y)


def check_triton() -> None:
    from triton_kernels import add_softly

    x, y = normal(1000), normal(1000, seed=2)
    torch.testing.assert_close(add_softly(x.to(CUDA), y.to(CUDA)).cpu(), torch.tanh(x) + y, rtol=1e-4, atol=1e-5)


def check_triton_product() -> None:
    from triton_kernels import matrix_product

    for dtype in (torch.float16, torch.bfloat16):
        x, y = normal(64, 64, dtype=dtype), normal(64, 64, dtype=dtype, seed=2)
        expected = x.float() @ y.float()
        torch.testing.assert_close(matrix_product(x.to(CUDA), y.to(CUDA)).cpu(), expected, rtol=1e-2, atol=1e-2)


def check_seed() -> None:
    torch.cuda.manual_seed(7)
    first = torch.rand(1000, device=CUDA)
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.rand(1000, device=CUDA), first)
    assert 0.4 < float(first.cpu().mean()) < 0.6


def check_generator_state() -> None:
    state = torch.cuda.get_rng_state()
    first = torch.randn(1000, device=CUDA)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(1000, device=CUDA).cpu(), first.cpu())


def check_normal_numbers() -> None:
    sample = torch.randn(20_000, device=CUDA).cpu()
    assert abs(float(sample.mean())) < 0.05
    assert abs(float(sample.std()) - 1) < 0.05


def check_random_integers() -> None:
    sample = torch.randint(3, 9, (10_000,), device=CUDA).cpu()
    assert sorted(sample.unique().tolist()) == [3, 4, 5, 6, 7, 8]


def check_permutation() -> None:
    assert torch.equal(torch.randperm(1000, device=CUDA).cpu().sort().values, torch.arange(1000))


def check_dropout() -> None:
    kept = F.dropout(torch.ones(10_000).to(CUDA), 0.3).cpu()
    assert 0.65 < float((kept > 0).float().mean()) < 0.75


def check_multinomial() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0])
    sample = torch.multinomial(weights.to(CUDA), 4000, replacement=True).cpu().bincount(minlength=3)
    assert sample[0] == 0
    assert 2.5 < float(sample[2] / sample[1]) < 3.6


def check_bernoulli() -> None:
    assert 0.2 < float(torch.empty(10_000, device=CUDA).bernoulli_(0.25).cpu().mean()) < 0.3


def check_autocast() -> None:
    x, y = normal(32, 32), normal(32, 32, seed=2)
    with torch.autocast("cuda", torch.bfloat16):
        product = x.to(CUDA) @ y.to(CUDA)
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.cpu().float(), x @ y, rtol=0.1, atol=0.2)


def check_profiler_marks() -> None:
    torch.cuda.nvtx.range_push("farbus")
    torch.cuda.nvtx.range_pop()
    check_round_trip()


def checks() -> Iterator[Operation]:
    for name, function in sorted(globals().items()):
        if name.startswith("check_") and inspect.isfunction(function):
            title = "device: " + name.removeprefix("check_").replace("_", " ")
            yield Operation(name=title, function=function, inputs=None, compiles=False)


def operations() -> list[Operation]:
    """All of them; a name is there once."""
    table = [
        operation
        for group in (
            checks,
            creation,
            movement,
            unary,
            binary,
            reductions,
            indexing,
            linear_algebra,
            fourier_and_sparse,
            networks,
            autograd,
            special,
        )
        for operation in group()
    ]
    assert len({operation.name for operation in table}) == len(table)
    return table
