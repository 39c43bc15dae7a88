"""Generate how calls travel as their arguments: one walk per call and direction.

``params.h`` is compiled into both sides: ``request_N`` walks what goes to the server,
``reply_N`` what comes back.  The client's half fills the arguments in, walks the request
writing, and walks the reply reading; the server's half does the reverse and calls the
driver in between.  What a type needs beyond its bytes (handles, nested pointers) is a
``marshal_TYPE`` function of native/wire/nested.h or of each side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from farbus.remoting.codegen.abi import BANNER
from farbus.remoting.spec import ENTRIES, Entry

#: Types that do not travel as their bytes, by the name that their function has.
_WALKED = frozenset(
    {
        "CUarray",
        "CUcontext",
        "CUdevResource",
        "CUdevResourceDesc",
        "CUdevice",
        "CUDA_BATCH_MEM_OP_NODE_PARAMS",
        "CUDA_GRAPH_INSTANTIATE_PARAMS",
        "CUDA_HOST_NODE_PARAMS",
        "CUDA_KERNEL_NODE_PARAMS_v1",
        "CUDA_KERNEL_NODE_PARAMS_v2",
        "CUDA_MEMCPY3D_v2",
        "CUDA_MEM_ALLOC_NODE_PARAMS",
        "CUDA_RESOURCE_DESC",
        "CUevent",
        "CUfunction",
        "CUgraph",
        "CUgraphConditionalHandle",
        "CUgraphExec",
        "CUgraphExecUpdateResultInfo",
        "CUgraphNode",
        "CUgraphNodeParams",
        "CUgreenCtx",
        "CUkernel",
        "CUlaunchConfig",
        "CUlinkState",
        "CUmemAccessDesc",
        "CUmemAllocationProp",
        "CUmemGenericAllocationHandle",
        "CUmemLocation",
        "CUmemPoolProps",
        "CUmemoryPool",
        "CUmipmappedArray",
        "CUmodule",
        "CUstream",
        "CUsurfObject",
        "CUsurfref",
        "CUtexObject",
        "CUtexref",
        "CUuserObject",
    }
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a call and how it travels."""

    ctype: str  # what is passed or pointed to, without const
    name: str
    pointer: bool
    constant: bool
    way: str  # value, in, out, inout, list, in8, out8, opaque
    count: str  # "" for one; a C expression over the parameters

    @property
    def walk(self) -> str:
        """The type's own function, or "" when it travels as its bytes."""
        if self.ctype in _WALKED:
            return self.ctype
        plain = self.ctype.removesuffix("_v1")
        return plain if plain in _WALKED else ""


@dataclass(frozen=True)
class Call:
    """An entry that travels as its arguments."""

    entry: Entry
    parameters: tuple[Parameter, ...]
    drops: str
    wait: bool
    passes: bool
    errors: bool
    hand: bool


def _call(entry: Entry) -> Call:
    assert entry.marshalled is not None
    ways: dict[str, tuple[str, str]] = {}
    flags = set()
    drops = ""
    for word in entry.marshalled.split():
        found = re.fullmatch(r"(\w+):(\w+)(?:\[(\w+)(?:-(\d))?\])?", word)
        if not found:
            flags.add(word)
        elif found[1] == "drop":
            drops = found[2]
        else:
            count = found[3] or ""
            if found[4]:
                count = f"{count} - {found[4]}"
            ways[found[2]] = (found[1], count)
    unknown = flags - {"wait", "pass", "errors", "hand"}
    if unknown:
        raise ValueError(f"{entry.symbol}: unknown words {sorted(unknown)}")
    parameters = []
    for text in entry.parameters.split(", "):
        if text in ("", "void"):
            continue
        named = re.fullmatch(r"(const )?(.*?)\s*(\*?)\s*(\w+)", text)
        if not named:
            raise ValueError(f"{entry.symbol}: cannot read the parameter {text!r}")
        constant, pointer = bool(named[1]), bool(named[3])
        way, count = ways.pop(named[4], ("", ""))
        if not way:
            way = "value" if not pointer else "in" if constant else "out"
            if constant and named[2] == "char":
                way = "string"
        parameters.append(Parameter(named[2], named[4], pointer, constant, way, count))
    if ways:
        raise ValueError(f"{entry.symbol}: no parameters {sorted(ways)}")
    return Call(
        entry,
        tuple(parameters),
        drops,
        wait="wait" in flags,
        passes="pass" in flags,
        errors="errors" in flags,
        hand="hand" in flags,
    )


@cache
def calls() -> tuple[Call, ...]:
    """All entries that travel as their arguments, in the order of their numbers."""
    return tuple(_call(entry) for entry in ENTRIES if entry.marshalled is not None)


def _member(parameter: Parameter) -> str:
    if not parameter.pointer:
        return f"\t{parameter.ctype} {parameter.name};"
    return f"\t{parameter.ctype} *{parameter.name};"


def _counts(call: Call) -> set[str]:
    """Parameters that lists are counted by: their first value is the room."""
    return {parameter.count for parameter in call.parameters if parameter.way == "list"}


def _each(parameter: Parameter, count: str) -> list[str]:
    """Walk `count` elements that the pointer leads to."""
    name = f"a->{parameter.name}"
    if not parameter.walk:
        if not count:
            return [f"\tif ({name})", f"\t\tmarshal_plain(m, {name}, sizeof(*{name}));"]
        return [f"\tif ({name})", f"\t\tmarshal_plain(m, {name}, ({count}) * sizeof(*{name}));"]
    if not count:
        return [f"\tif ({name})", f"\t\tmarshal_{parameter.walk}(m, {name});"]
    return [
        f"\tfor (size_t i = 0; {name} && i < (size_t)({count}); i++)",
        f"\t\tmarshal_{parameter.walk}(m, &{name}[i]);",
    ]


def _size(parameter: Parameter) -> str:
    return "8" if parameter.way in ("in8", "out8") else f"sizeof(*a->{parameter.name})"


def _expression(call: Call, count: str) -> str:
    first, _, less = count.partition(" - ")
    if first in {p.name for p in call.parameters}:
        first = f"a->{first}"
    return f"marshal_less({first}, {less})" if less else first


def _request(call: Call) -> list[str]:
    out: list[str] = []
    rooms = _counts(call)
    for parameter in call.parameters:
        if parameter.way == "value" and not parameter.walk:
            out.append(f"\tmarshal_plain(m, &a->{parameter.name}, sizeof(a->{parameter.name}));")
    for name in sorted(rooms):
        out += [
            f"\ta->{name} = marshal_pointer(m, a->{name}, 1, sizeof(*a->{name}));",
            f"\ta->{name}_room = marshal_room(m, a->{name}, sizeof(*a->{name}));",
        ]
    for parameter in call.parameters:
        name = parameter.name
        count = _expression(call, parameter.count) if parameter.count else ""
        if parameter.way == "value":
            if parameter.walk:
                out.append(f"\tmarshal_{parameter.walk}(m, &a->{name});")
        elif parameter.way == "opaque":
            out.append(f"\tmarshal_plain(m, &a->{name}, sizeof(a->{name}));")
        elif parameter.way == "string":
            out.append(f"\ta->{name} = marshal_string(m, a->{name});")
        elif parameter.name in rooms:
            continue
        elif parameter.way == "list":
            out.append(f"\ta->{name} = marshal_pointer(m, a->{name}, a->{parameter.count}_room, sizeof(*a->{name}));")
        else:
            out.append(f"\ta->{name} = marshal_pointer(m, a->{name}, {count or 1}, {_size(parameter)});")
            if parameter.way == "in8":
                out += [f"\tif (a->{name})", f"\t\tmarshal_plain(m, a->{name}, 8);"]
            elif parameter.way in ("in", "inout"):
                out += _each(parameter, count)
    return out


def _reply(call: Call) -> list[str]:
    out: list[str] = []
    rooms = _counts(call)
    for parameter in call.parameters:
        if parameter.name in rooms:
            out += _each(parameter, "")
    for parameter in call.parameters:
        if parameter.name in rooms:
            continue
        if parameter.way == "out8":
            out += [f"\tif (a->{parameter.name})", f"\t\tmarshal_plain(m, a->{parameter.name}, 8);"]
        elif parameter.way in ("out", "inout"):
            out += _each(parameter, _expression(call, parameter.count) if parameter.count else "")
        elif parameter.way == "list":
            room = f"a->{parameter.count}_room"
            filled = f"marshal_filled(a->{parameter.count} ? *a->{parameter.count} : 0, {room})"
            out += _each(parameter, filled)
            if parameter.walk == "CUgraphNode":
                name = f"a->{parameter.name}"
                out.append(f"\tmarshal_rest(m, {name}, sizeof(*{name}), {filled}, {room});")
    return out


def generate_params() -> str:
    """The text of params.h."""
    out = [
        BANNER,
        "/* The arguments of calls that travel as they are, and the walks over them.",
        " * Included by client_calls.c and server_calls.c alone. */",
        '#include "../wire/nested.h"',
        "",
    ]
    for call in calls():
        number = call.entry.number
        out += [f"/* {call.entry.symbol} */", f"struct args_{number} {{"]
        out += [_member(parameter) for parameter in call.parameters] or ["\tchar none;"]
        out += [f"\tsize_t {name}_room;" for name in sorted(_counts(call))]
        out += ["};", ""]
        for kind, body in (("request", _request(call)), ("reply", _reply(call))):
            out += [f"static void {kind}_{number}(struct marshal *m, struct args_{number} *a)", "{"]
            out += body or ["\t(void)m;", "\t(void)a;"]
            if body and not any("a->" in line for line in body):
                out.append("\t(void)a;")
            out += ["}", ""]
    return "\n".join(out)


def _routes(entry: Entry, parameter: Parameter) -> bool:
    """Whether an address says to which server a call goes; one that is only wished for does not."""
    return (
        parameter.ctype.startswith("CUdeviceptr") and parameter.way == "value" and entry.symbol != "cuMemAddressReserve"
    )


def generate_client_calls() -> str:
    """The text of client_calls.c."""
    out = [BANNER, '#include "../client/calls/marshal.h"', '#include "params.h"', ""]
    for call in calls():
        entry = call.entry
        name = f"client_raw_{entry.symbol}" if call.hand else entry.symbol
        out += [f"CUresult {name}({entry.parameters or 'void'})", "{"]
        initial = ", ".join(
            f".{p.name} = " + (f"({p.ctype} *){p.name}" if p.pointer else p.name) for p in call.parameters
        )
        out += [
            f"\tstruct args_{entry.number} a = {{ {initial or '0'} }};",
            "\tstruct marshal m;",
            f"\tCUresult result = client_marshal_begin(&m, {entry.number});",
            "",
            "\tif (result != CUDA_SUCCESS)",
            "\t\treturn result;",
            *(f"\tclient_marshal_address(&m, a.{p.name});" for p in call.parameters if _routes(entry, p)),
            f"\trequest_{entry.number}(&m, &a);",
            f"\tresult = client_marshal_call(&m, {'true' if call.wait else 'false'});",
            "\tif (result == CUDA_SUCCESS)" if not call.errors else "\tif (m.get)",
            f"\t\treply_{entry.number}(&m, &a);",
            "\treturn client_marshal_end(&m, result);",
            "}",
            "",
        ]
    return "\n".join(out)


def generate_raw_header() -> str:
    """The text of client_raw.h."""
    out = [
        BANNER,
        "/* Calls as they are, for functions of native/client that add to them. */",
        "#ifndef FARBUS_GENERATED_CLIENT_RAW_H",
        "#define FARBUS_GENERATED_CLIENT_RAW_H",
        "",
        '#include "cuda_abi.h"',
        "",
    ]
    out += [
        f"CUresult client_raw_{call.entry.symbol}({call.entry.parameters or 'void'});" for call in calls() if call.hand
    ]
    out += ["", "#endif", ""]
    return "\n".join(out)


def generate_server_calls() -> str:
    """The text of server_calls.c."""
    out = [
        BANNER,
        '#include "../server/calls/marshal.h"',
        '#include "../server/ground/lead.h"',
        '#include "params.h"',
        "",
    ]
    for call in calls():
        entry = call.entry
        number = entry.number
        arguments = ", ".join(f"a.{parameter.name}" for parameter in call.parameters)
        # Libraries and their kernels are found by who leads alone (native/server/ground/hold.c).
        if (call.wait or call.passes) and {"CUfunction", "CUkernel", "CUlibrary", "CUmodule"} & {
            p.walk for p in call.parameters
        }:
            raise ValueError(f"{entry.symbol} may wait, and what it names of a library is not held meanwhile")
        out += [
            f"static CUresult call_{number}(struct server_call *call, struct marshal *m)",
            "{",
            f"\tstruct args_{number} a = {{ 0 }};",
            "\tCUresult result;",
            "",
            f"\tif (!call->driver->{entry.symbol})",
            "\t\treturn CUDA_ERROR_NOT_SUPPORTED;",
            f"\trequest_{number}(m, &a);",
            "\tresult = server_marshal_taken(m);",
            "\tif (result != CUDA_SUCCESS)",
            "\t\treturn result;",
        ]
        if call.drops:
            kind = next(p.walk for p in call.parameters if p.name == call.drops)
            out.append(f"\tserver_marshal_dropping(m, SERVER_{kind}, (uint64_t)a.{call.drops});")
        if call.passes:
            out += ["\t/* Others are served meanwhile. */", "\tserver_pass(call);"]
        out += [
            f"\tresult = call->driver->{entry.symbol}({arguments});",
            f"\tif (!server_marshal_answer(m, result, {'true' if call.errors else 'false'}))",
            "\t\treturn result;",
            f"\treply_{number}(m, &a);",
            "\treturn CUDA_SUCCESS;",
            "}",
            "",
        ]
    out += [
        "/* By the entry's number. */",
        "const struct server_marshalled server_marshalled[SERVER_MARSHALLED] = {",
    ]
    out += [
        f"\t[{call.entry.number}] = {{ call_{call.entry.number}, {'true' if call.wait else 'false'} }},"
        for call in calls()
    ]
    out += ["};", ""]
    return "\n".join(out)
