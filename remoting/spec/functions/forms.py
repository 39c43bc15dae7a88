"""The three forms in which a function is written down.

``marshalled`` is one that travels as its arguments (docs/wire.md, "Calls as they are"): its
client stub, its server half and both walks over its arguments are generated from the
parameters and from what the directions add to them, word by word:

``in:p`` ``out:p`` ``inout:p``
    which way what p points to travels; without a word, ``const`` goes in, other pointers out
``in:p[n]`` ``out:p[n]``
    p points to n elements, n being a parameter or one and a number (``n-1``)
``list:p[n]``
    p takes as many elements as ``*n`` says there is room for, and ``*n`` becomes how many there are
``in8:p`` ``out8:p``
    p points to 8 bytes of whatever type
``opaque:p``
    p travels as a number
``drop:p``
    when the call succeeds, the object p is no more, nor what belonged to it
``wait``
    the driver may wait for the device
``pass``
    the driver may wait for what another thread or process of the program calls, or for the
    device: others are served meanwhile, as with ``wait``, and the operation on the wire stays what
    it was
``errors``
    results are written when the call fails, too
``hand``
    the stub is called ``client_raw_NAME``, and native/client has the function around it

``entry`` is one that is answered otherwise.  ``via`` lets its client stub be generated:
``operation(field=argument, ...) -> reply field=argument``; without it the stub is
written by hand in native/client.  ``missing`` is one that is not there, with the
reason that a caller is told.
"""

from __future__ import annotations

from typing import Final

from farbus.remoting.spec.model import Answer, Entry, Unsupported

LOCAL: Final = Answer.LOCAL
POSTED: Final = Answer.POSTED
CALLED: Final = Answer.CALLED


def entry(
    number: int,
    name: str,
    version: int,
    symbol: str,
    answer: Answer,
    parameters: str,
    *,
    per_thread: tuple[int, str] | None = None,
    via: str = "",
    same_as: str = "",
) -> Entry:
    """A function that is there."""
    return Entry(
        number=number,
        name=name,
        version=version,
        symbol=symbol,
        answer=answer,
        parameters=parameters,
        per_thread=per_thread,
        via=via,
        same_as=same_as,
    )


def marshalled(
    number: int,
    name: str,
    version: int,
    symbol: str,
    parameters: str,
    directions: str = "",
    *,
    per_thread: tuple[int, str] | None = None,
) -> Entry:
    """A function that travels as its arguments."""
    return Entry(
        number=number,
        name=name,
        version=version,
        symbol=symbol,
        answer=Answer.CALLED,
        parameters=parameters,
        per_thread=per_thread,
        marshalled=directions,
    )


def missing(
    number: int,
    name: str,
    version: int,
    symbol: str,
    reason: Unsupported,
    *,
    per_thread: tuple[int, str] | None = None,
) -> Entry:
    """A function that is not there."""
    return Entry(
        number=number,
        name=name,
        version=version,
        symbol=symbol,
        answer=Answer.UNSUPPORTED,
        parameters="",
        per_thread=per_thread,
        reason=reason.text,
    )
