"""What gRPC says of a call that failed, as Farbus's errors."""

from __future__ import annotations

import grpc.aio
import pytest

from farbus.api.status import from_rpc_error
from farbus.errors import FarbusError, Unavailable


def told(code: grpc.StatusCode, details: str) -> FarbusError:
    nothing = grpc.aio.Metadata()
    return from_rpc_error(grpc.aio.AioRpcError(code, nothing, nothing, details), "the scheduler")


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)"),
        (grpc.StatusCode.CANCELLED, ""),
    ],
)
def test_connection_that_breaks_may_be_tried_again(code: grpc.StatusCode, details: str) -> None:
    assert type(told(code, details)) is Unavailable


def test_a_socket_that_is_gone_is_told_in_few_words() -> None:
    details = "FAILED_PRECONDITION: unix:/a.sock: connect failed: addr: unix:/a.sock error: No such file or directory"
    error = told(grpc.StatusCode.UNAVAILABLE, details)
    assert str(error) == "the scheduler can't be reached: No such file or directory; is it running?"


def test_defect_of_the_other_side_is_not_tried_again() -> None:
    assert type(told(grpc.StatusCode.INTERNAL, "a defect in Put: see the server's log")) is FarbusError
