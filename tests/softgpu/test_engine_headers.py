"""The instructions behind CUDA's own headers are all there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.softgpu.engine import Module, Status, compile_cuda, nvcc


@pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")
@pytest.mark.parametrize(
    ("arch", "flags"),
    [("sm_80", ()), ("sm_120f", ("-use_fast_math",))],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_nothing_of_the_headers_is_missing(tmp_path: Path, arch: str, flags: tuple[str, ...]) -> None:
    source = Path(__file__).parent / "kernels/headers.cu"
    with Module(compile_cuda(source, tmp_path / "headers.ptx", arch=arch, flags=flags)) as module:
        infos = [module.info(name) for name in module.function_names()]
    missing = {info.name: info.unsupported for info in infos if info.status != Status.OK}
    assert not missing
    assert len(infos) >= 10
