"""Operations across lanes: who takes part is said by the member mask, not by the place in the code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.softgpu.engine import Module

HEADER = ".version 8.6\n.target sm_100\n.address_size 64\n"
LANES = np.arange(32, dtype=np.uint32)


def kernel(body: str, *, before: str = "") -> str:
    """A kernel that stores %r9 of each lane; %r1 is the lane, %p1 is true in the upper half."""
    return f"""{HEADER}{before}
.visible .entry k(.param .u64 p)
{{
    .reg .b32 %r<10>; .reg .f32 %f<3>; .reg .b64 %rd<5>; .reg .pred %p<5>; .shared .b32 s[32];
    ld.param.u64 %rd1, [p]; mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
    setp.ge.u32 %p1, %r1, 16;
{body}
    st.global.u32 [%rd1], %r9;
    ret;
}}
"""


def run(text: str) -> list[int]:
    out = np.zeros(32, np.uint32)
    with Module(text, sm=100) as module:
        module.launch("k", 1, 32, out)
    return [int(value) for value in out]


HALVES = "selp.b32 %r2, 0xffff0000, 0x0000ffff, %p1; and.b32 %r3, %r1, 1; setp.ne.u32 %p2, %r3, 0;\n"


@pytest.mark.parametrize(
    ("operation", "lower", "upper"),
    [
        ("vote.sync.ballot.b32 %r9, %p2, %r2;", 0xAAAA, 0xAAAA0000),
        ("vote.sync.any.pred %p3, %p1, %r2; selp.u32 %r9, 1, 0, %p3;", 0, 1),
        ("vote.sync.all.pred %p3, %p1, %r2; selp.u32 %r9, 1, 0, %p3;", 0, 1),
        ("vote.sync.uni.pred %p3, %p1, %r2; selp.u32 %r9, 1, 0, %p3;", 1, 1),
        ("match.all.sync.b32 %r9, %r2, %r2;", 0xFFFF, 0xFFFF0000),
        ("redux.sync.add.u32 %r9, %r1, %r2;", sum(range(16)), sum(range(16, 32))),
        ("redux.sync.max.s32 %r9, %r1, %r2;", 15, 31),
        ("cvt.rn.f32.u32 %f1, %r1; redux.sync.min.f32 %f2, %f1, %r2; cvt.rni.u32.f32 %r9, %f2;", 0, 16),
        ("elect.sync %r9|%p3, %r2;", 0, 16),
    ],
)
def test_lanes_of_one_instruction_may_name_different_members(operation: str, lower: int, upper: int) -> None:
    assert run(kernel(HALVES + operation)) == [lower] * 16 + [upper] * 16


def test_match_any_looks_only_at_the_members_that_the_lane_names() -> None:
    odd = [0x5555, 0xAAAA]
    expected = [odd[lane & 1] << (0 if lane < 16 else 16) for lane in range(32)]
    assert run(kernel(HALVES + "match.any.sync.b32 %r9, %r3, %r2;")) == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("shfl.sync.bfly.b32 %{d}, %r1, 31, 31, 0xffffffff;", [31 - lane for lane in range(32)]),
        ("vote.sync.ballot.b32 %{d}, %p2, 0xffffffff;", [0xAAAAAAAA] * 32),
        ("match.any.sync.b32 %{d}, %r3, 0xffffffff;", [0x55555555 << (lane & 1) for lane in range(32)]),
        ("redux.sync.add.u32 %{d}, %r1, 0xffffffff;", [496] * 32),
    ],
)
def test_members_may_stand_at_different_copies_of_an_operation(operation: str, expected: list[int]) -> None:
    body = f"""{HALVES}
    @%p1 bra UPPER;
    {operation.format(d="r9")}
    bra DONE;
UPPER:
    {operation.format(d="r8")}
    mov.u32 %r9, %r8;
DONE:
"""
    assert run(kernel(body)) == expected


def test_a_function_called_from_two_places_still_meets_its_members() -> None:
    function = """
.func (.param .b32 result) neighbour(.param .b32 value)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [value];
    shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xffffffff;
    st.param.b32 [result], %r2;
    ret;
}
"""
    call = """{ .param .b32 v; .param .b32 r; st.param.b32 [v], %r1;
    call.uni (r), neighbour, (v); ld.param.b32 %r9, [r]; }"""
    body = f"@%p1 bra UPPER; {call} bra DONE; UPPER: {call} add.u32 %r9, %r9, 100; DONE:"
    expected = [lane + 16 if lane < 16 else lane - 16 + 100 for lane in range(32)]
    assert run(kernel(body, before=function)) == expected


def test_a_warp_barrier_orders_lanes_at_different_copies_of_it() -> None:
    body = """
    mov.u64 %rd3, s; mov.u32 %r4, 0;
    @!%p1 bra READ;
    xor.b32 %r5, %r1, 16; mul.wide.u32 %rd4, %r5, 4; add.u64 %rd4, %rd3, %rd4;
    add.u32 %r6, %r1, 7; st.shared.u32 [%rd4], %r6; mov.u32 %r9, 0;
    bar.warp.sync 0xffffffff;
    bra DONE;
READ:
    bar.warp.sync 0xffffffff;
    add.u64 %rd4, %rd3, %rd2; ld.shared.u32 %r9, [%rd4];
DONE:
"""
    assert run(kernel(body)) == [lane + 16 + 7 for lane in range(16)] + [0] * 16


def test_a_lane_waits_for_a_member_that_waits_for_another_one() -> None:
    """Lane 0 needs lane 1, which first needs lane 2, which comes last."""
    body = """
    mov.u32 %r9, 0; mov.u32 %r4, 0;
    setp.gt.u32 %p2, %r1, 2; @%p2 bra END;
    setp.eq.u32 %p2, %r1, 1; @%p2 bra MIDDLE;
    setp.eq.u32 %p2, %r1, 0; @%p2 bra FIRST;
WORK:
    add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 10; @%p3 bra WORK;
    shfl.sync.idx.b32 %r9, %r4, 1, 31, 6;
    bra END;
FIRST:
    shfl.sync.idx.b32 %r9, %r4, 1, 31, 3;
    bra END;
MIDDLE:
    shfl.sync.idx.b32 %r5, %r4, 2, 31, 6;
    shfl.sync.idx.b32 %r9, %r5, 1, 31, 3;
END:
"""
    # Lane 1 gets 10 from lane 2 and gives it to lane 0.
    assert run(kernel(body))[:2] == [10, 10]


def test_members_that_exited_are_not_waited_for() -> None:
    body = """
    setp.eq.u32 %p2, %r1, 5; @%p2 bra GONE;
    vote.sync.ballot.b32 %r9, 1, 0xffffffff;
    bra DONE;
GONE:
    exit;
DONE:
"""
    expected = [0xFFFFFFDF] * 32
    expected[5] = 0
    assert run(kernel(body)) == expected


def test_members_that_wait_at_the_barrier_of_the_block_are_not_waited_for() -> None:
    """Wrong by CUDA's rules and common: the upper half never comes to the shuffle that names it."""
    body = """
    mov.u32 %r9, %r1;
    @%p1 bra BARRIER;
    shfl.sync.down.b32 %r9, %r1, 8, 31, 0xffffffff;
    shfl.sync.idx.b32 %r9, %r9, 1, 31, 0xffffffff;
BARRIER:
    bar.sync 0;
"""
    assert run(kernel(body)) == [9] * 16 + list(range(16, 32))


def test_lanes_that_look_for_their_members_leave_other_operations_alone() -> None:
    """While two copies of a vote meet, a lane waits at an operation that has other operands."""
    body = f"""{HALVES}
    setp.eq.u32 %p3, %r1, 31; @%p3 bra LAST;
    setp.eq.u32 %p3, %r1, 30; @%p3 bra WAITS;
    @%p1 bra UPPER;
    vote.sync.ballot.b32 %r9, %p2, 0x3fffffff;
    bra DONE;
UPPER:
    vote.sync.ballot.b32 %r9, %p2, 0x3fffffff;
DONE:
    bra END;
WAITS:
    elect.sync %r9|%p4, 0xc0000000;
    bra END;
LAST:
    elect.sync %r9|%p4, 0xc0000000;
END:
"""
    assert run(kernel(body)) == [0x2AAAAAAA] * 30 + [30, 30]
