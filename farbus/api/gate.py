"""The gate before the scheduler's services: who calls, whether he may, and what is written down about it.

Every call of every service goes through here, also of services that are added
later: a method that is not in :data:`farbus.api.identity.METHOD_ROLES` can be
called by nobody, and one that is not in ``READ_METHODS`` is audited.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from farbus.api.audit import AuditLog, AuditRecord, bounded, now_text
from farbus.api.authority import identity_of
from farbus.api.identity import BELIEVE_USERS, READ_METHODS, Identity, Vouching, resolve_caller
from farbus.api.status import HINT_METADATA, code_of
from farbus.api.trust import Peer, Trust
from farbus.errors import FarbusError, NotPermitted, Unavailable

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""How long an open call outlives the revocation of its certificate."""

ABORT_WITHIN_S = 1.0
"""How long a caller that does not read may keep others from being ended."""

MAX_OPEN_CALLS = 4_096
"""Calls of one caller at a time, of all that one node makes for a user: each takes 50 KiB here and at his agent."""

MAX_ERROR_BYTES, MAX_HINT_BYTES = 2_048, 512
"""What an error says, of what a caller sent too: gRPC passes on 8 KiB for certain, in which a byte may take three."""

TARGETS = ("job_id", "lease_id", "device_id", "device", "volume", "name", "node", "application")
"""Fields of a request that say what it is about, the first that is set."""

Context = grpc.aio.ServicerContext[Any, Any]

_caller: contextvars.ContextVar[tuple[Identity, Peer]] = contextvars.ContextVar("farbus caller")


def caller_of_call(_context: Context, _method: str) -> Identity:
    """Return on whose behalf the present call is."""
    return _caller.get()[0]


def peer_of_call() -> Peer:
    """Return the certificate that the present call came with."""
    return _caller.get()[1]


@contextlib.asynccontextmanager
async def errors_become_status(context: Context, method: str) -> AsyncIterator[None]:
    """Turn errors inside the block into the call's status; a defect is logged and told as no more than that."""
    try:
        yield
    except FarbusError as error:
        context.set_trailing_metadata(((HINT_METADATA, _line(error.hint, MAX_HINT_BYTES).encode()),))
        await _abort(context, code_of(error), _line(error.message, MAX_ERROR_BYTES))
    except DecodeError:
        told = f"{method.rpartition('/')[2]}: a message of this call can't be read"
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, told)
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception:
        _log.exception("defect in %s", method)
        told = f"a defect in {method.rpartition('/')[2]}: see the server's log"
        await _abort(context, grpc.StatusCode.INTERNAL, told)


async def _abort(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """End a call with a status: raises its AbortError, or CancelledError where nobody is left to hear it."""
    try:
        await context.abort(code, details)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:
        # Its caller has left, or the gate has ended it, in this very moment.  No other AbortError may be raised than
        # gRPC's own, and a call that nobody waits for is what a cancelled one is.
        raise asyncio.CancelledError(str(error)) from error
    raise AssertionError("a call went on after its abort")


def _line(text: str, most_bytes: int) -> str:
    """Return ``text``, which may quote what somebody sent, on one line of at most so many bytes, without controls."""
    # A character takes a byte at least: no more of a quoted megabyte is looked at.
    shown = "".join(each if each.isprintable() else " " for each in text[: most_bytes + 1])
    encoded = shown.encode()
    return shown if len(encoded) <= most_bytes else f"{encoded[:most_bytes].decode(errors='ignore')} ..."


def _or_error(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``read`` with its error for an answer: gRPC would have it that the server has a defect."""

    def read_or_error(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as error:
            return error

    return read_or_error


class _OpenCall:
    """A call that has come through; ``address`` is asked for first: gRPC can't tell it of a call that has ended."""

    def __init__(
        self, context: Context, peer: Peer, caller: Identity, method: str, request: Any, *, address: str
    ) -> None:
        self.context = context
        self.caller = caller
        self.address = address
        self.peer = peer
        self.method = method
        self.request = request
        self.reply: Any = None
        self.task = asyncio.current_task()
        self.ended = False
        """By the gate, which has written it down."""


class Gate(grpc.aio.ServerInterceptor):
    """Lets calls through, or refuses them.

    ``operator_only`` are names of methods (``Submit``) that only operators
    may call for the time being, whatever the table says; ``vouching`` says
    how far nodes are believed.
    """

    def __init__(
        self,
        trust: Trust,
        *,
        audit: AuditLog | None = None,
        operator_only: frozenset[str] = frozenset(),
        vouching: Vouching = BELIEVE_USERS,
    ) -> None:
        self._trust = trust
        self._vouching = vouching
        self._audit = audit
        self._operator_only = operator_only
        self._open: set[_OpenCall] = set()
        self._opened = asyncio.Event()
        """Set while there are open calls."""
        self._callers: Counter[Identity] = Counter()
        """How many open calls each has."""

    async def watch(self) -> None:
        """End open calls whose certificates are revoked or expire, until cancelled."""
        while True:
            # A server without calls looks at nothing: each new call and each new connection looks for itself.
            await self._opened.wait()
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self.end_untrusted()
            except Exception:
                # What one look has met, the next one may not: without looks nobody's call would end any more.
                _log.exception("open calls not looked at")
            if not self._open:
                self._opened.clear()

    async def end_untrusted(self) -> None:
        """End the open calls whose certificates are no good any more."""
        self._trust.refresh()
        troubles = ((call, self._trust.trouble_with(call.peer)) for call in tuple(self._open))
        await asyncio.gather(*(self._end(call, trouble.message) for call, trouble in troubles if trouble is not None))

    async def _end(self, call: _OpenCall, reason: str) -> None:
        call.ended = True
        self._open.discard(call)
        _log.warning("call ended: %s (%s)", reason, call.method)
        written = self._write(call.address, call.method, call.caller, target_of(call.request), "refused", reason)
        # The abort tells the caller; cancelling alone would leave him waiting.
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(ABORT_WITHIN_S):
                await call.context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        if call.task is not None:
            call.task.cancel()
        if written is not None:
            await written

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of a call."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        inner = getattr(handler, kind)
        wrapped = self._answering(inner, method)
        if handler.response_streaming:
            wrapped = (
                self._yielding(inner, method) if inspect.isasyncgenfunction(inner) else self._writing(inner, method)
            )
        return getattr(grpc, f"{kind}_rpc_method_handler")(  # type: ignore[no-any-return]
            wrapped,
            request_deserializer=handler.request_deserializer
            if handler.request_streaming
            else _or_error(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _answering(self, inner: Callable[[Any, Any], Awaitable[Any]], method: str) -> Callable[[Any, Any], Any]:
        async def answer(request: Any, context: Context) -> Any:
            async with self._admitted(context, method, request) as call, self._recorded(call):
                call.reply = await inner(request, context)
            return call.reply

        return answer

    def _yielding(self, inner: Callable[[Any, Any], AsyncIterator[Any]], method: str) -> Callable[[Any, Any], Any]:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            async with (
                self._admitted(context, method, request, streams=True) as call,
                self._recorded(call, lasts=True),
                contextlib.aclosing(inner(request, context)) as items,  # type: ignore[type-var]
            ):
                async for item in items:
                    yield item

        return stream

    def _writing(self, inner: Callable[[Any, Any], Awaitable[None]], method: str) -> Callable[[Any, Any], Any]:
        async def stream(request: Any, context: Context) -> None:
            async with (
                self._admitted(context, method, request, streams=True) as call,
                self._recorded(call, lasts=True),
            ):
                await inner(request, context)

        return stream

    @contextlib.asynccontextmanager
    async def _admitted(
        self, context: Context, method: str, request: Any, *, streams: bool = False
    ) -> AsyncIterator[_OpenCall]:
        address = str(context.peer())
        async with errors_become_status(context, method):
            certificate = next(iter(context.auth_context().get("x509_pem_cert") or ()), None)
            holder: Identity | None = None
            try:
                if certificate is None:
                    raise NotPermitted("the connection carries no client certificate")
                holder = identity_of(certificate)
                peer = self._trust.check(certificate)
                caller = self._resolve(peer, context, method)
            except FarbusError as error:
                written = self._write(address, method, holder, target_of(request), "refused", error.message)
                if written is not None:
                    await written
                raise
            if self._callers[caller] >= MAX_OPEN_CALLS:
                raise Unavailable(
                    f"{caller.name} has {MAX_OPEN_CALLS} calls open, the most that one may", hint="end some of them"
                )
            _caller.set((caller, peer))
            if streams:
                # Else the first message takes it along, and an abort beside that one sends it twice: gRPC refuses
                # the abort, and the caller never hears of his end.
                await context.send_initial_metadata(())
            call = _OpenCall(context, peer, caller, method, request, address=address)
            self._open.add(call)
            self._opened.set()
            self._callers[caller] += 1
            try:
                yield call
            finally:
                self._open.discard(call)
                self._callers[caller] -= 1
                if not self._callers[caller]:
                    del self._callers[caller]

    def _resolve(self, peer: Peer, context: Context, method: str) -> Identity:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        caller = self._vouching.believed(resolve_caller(peer.identity, metadata, method), method)
        name = method.rpartition("/")[2]
        if name in self._operator_only and not caller.is_operator:
            raise NotPermitted(f"{name} is for operators only at present", hint="the scheduler's operator_only says so")
        return caller

    @contextlib.asynccontextmanager
    async def _recorded(self, call: _OpenCall, *, lasts: bool = False) -> AsyncIterator[None]:
        """Write down how the call inside the block comes out, whichever way it is left.

        Of what ``lasts`` also that it began: its end may be far away, or never
        come where this process is killed.
        """
        if lasts:
            await self._note(call, "begun")
        try:
            if isinstance(call.request, DecodeError):
                raise call.request
            yield
        except (asyncio.CancelledError, GeneratorExit):
            # Not waited for: there is nobody left to answer.
            if not call.ended:
                self._post(call, *_outcome(call.context, otherwise="left"))
            raise
        except BaseException:
            await self._note(call, *_outcome(call.context, otherwise="failed"))
            raise
        await self._note(call, *_outcome(call.context, otherwise="ok"))

    async def _note(self, call: _OpenCall, outcome: str, error: str = "") -> None:
        written = self._post(call, outcome, error)
        if written is not None:
            await written

    def _post(self, call: _OpenCall, outcome: str, error: str = "") -> asyncio.Future[None] | None:
        """Have an outcome written down, if the call is of those that are."""
        if outcome != "refused" and (call.method in READ_METHODS or getattr(call.request, "check_only", False)):
            return None
        return self._write(call.address, call.method, call.caller, target_of(call.request, call.reply), outcome, error)

    def _write(
        self, address: str, method: str, caller: Identity | None, target: str, outcome: str, error: str
    ) -> asyncio.Future[None] | None:
        if self._audit is None:
            return None
        return self._audit.post(
            AuditRecord(
                at=now_text(),
                who=bounded(caller.name) if caller else "unknown",
                role=caller.role.value if caller else "",
                node=caller.node if caller else "",
                peer=bounded(address),
                method=method.rpartition("/")[2],
                target=bounded(target),
                outcome=outcome,
                error=bounded(error),
            )
        )


def _outcome(context: Context, *, otherwise: str) -> tuple[str, str]:
    """Return outcome and error by the status that a call has been given, or ``otherwise`` where it has none."""
    code = context.code()
    if not code or code is grpc.StatusCode.OK:
        return otherwise, ""
    refused = code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.PERMISSION_DENIED.value[0])
    return "refused" if refused else "failed", str(context.details() or "")


def target_of(request: Any, reply: Any = None) -> str:
    """Return what a call is about, from the fields of its messages that name things."""
    for message in (reply, request):
        for field in TARGETS:
            value = getattr(message, field, "")
            if isinstance(value, str) and value:
                return value
    return ""
