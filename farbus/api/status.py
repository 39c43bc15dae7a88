"""Farbus's errors to gRPC's status codes and back, converted once at this edge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import grpc

from farbus.errors import (
    Conflict,
    FarbusError,
    InvalidInput,
    NotFound,
    NotPermitted,
    TimedOut,
    Unavailable,
    Unsatisfiable,
)

HINT_METADATA = "farbus-hint-bin"

_CODES: dict[type[FarbusError], grpc.StatusCode] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unsatisfiable: grpc.StatusCode.FAILED_PRECONDITION,
    NotPermitted: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Conflict: grpc.StatusCode.ABORTED,
    TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_ERRORS = {code: kind for kind, code in _CODES.items()}
_ERRORS[grpc.StatusCode.UNAUTHENTICATED] = NotPermitted
_ERRORS[grpc.StatusCode.RESOURCE_EXHAUSTED] = InvalidInput

# What OpenSSL says, inside gRPC's message, when the two sides' authorities differ.
_CERTIFICATE_SIGNS = (
    "CERTIFICATE_VERIFY_FAILED",
    "unknown ca",
    "UNKNOWN_CA",
    "certificate required",
    "bad certificate",
)


_AGAIN = "try again: it may be starting anew"

_BROKEN = "Internal error from Core"
"""What gRPC's Python binding says of a message that it could not send (set_internal_error in grpc/aio/_call.py):
the connection broke, and the status that says so has not come yet."""


def code_of(error: FarbusError) -> grpc.StatusCode:
    """Return the status code that carries ``error``; a plain FarbusError becomes INTERNAL."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return grpc.StatusCode.INTERNAL


@contextlib.contextmanager
def converted(peer: str) -> Iterator[None]:
    """Turn gRPC's errors inside the block into Farbus's; ``peer`` says who was called."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from error
    except grpc.aio.UsageError as error:
        raise Unavailable(f"{peer}: the connection is closed", hint=_AGAIN) from error
    except asyncio.CancelledError as error:
        # Closing a channel cancels the calls under way: not what their callers' tasks were told.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unavailable(f"{peer}: the connection was closed", hint=_AGAIN) from error


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> FarbusError:
    """Return the Farbus error that ``error`` carries or means."""
    details = error.details() or ""
    hint = ""
    for key, value in error.trailing_metadata() or ():
        if key == HINT_METADATA:
            hint = value.decode(errors="replace") if isinstance(value, bytes) else value
            return _ERRORS.get(error.code(), FarbusError)(details, hint=hint)
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        if any(sign in details for sign in _CERTIFICATE_SIGNS):
            return NotPermitted(
                f"{peer}: the certificates were not accepted",
                hint="use a certificate that the cluster's own authority issued (farbus ca issue); "
                "where that was replaced (farbus ca rotate), copy its ca.crt of now beside the certificate",
            )
        return Unavailable(f"{peer} can't be reached: {_short(details)}", hint="is it running?")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return late(peer)
    if is_broken(code, details):
        return Unavailable(f"{peer}: the connection broke", hint=_AGAIN)
    if code is grpc.StatusCode.CANCELLED:
        return Unavailable(f"{peer} ended the call", hint=_AGAIN)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidInput(f"{peer} does not know this call", hint="are both sides of the same version?")
    return _ERRORS.get(code, FarbusError)(f"{peer}: {_short(details) or code.name.lower()}")


def is_broken(code: grpc.StatusCode, details: str) -> bool:
    """Say whether this is no peer's status, but gRPC's word for a message that it could not send."""
    return code is grpc.StatusCode.INTERNAL and details.startswith(_BROKEN)


def late(peer: str) -> TimedOut:
    """Return the error for a call that ``peer`` has not answered within its limit."""
    return TimedOut(f"{peer} did not answer in time", hint="is it busy, or stopped? Try again")


def _short(details: str) -> str:
    """Keep the last cause of gRPC's nested message, on one line."""
    text = details.replace("\n", " ").strip()
    for mark in ("last error: ", "errors resolving "):
        if mark in text:
            text = text.rpartition(mark)[2]
    if "connect failed: addr: " in text:
        # "unix:PATH: connect failed: addr: unix:PATH error: No such file or directory": who was called is said already.
        text = text.rpartition(" error: ")[2]
    for noise in ("UNAVAILABLE: ", "UNKNOWN: "):
        text = text.removeprefix(noise)
    return text[:200]
