"""Generate the client's half: prototypes, stubs, the resolver, the exports."""

from __future__ import annotations

import re

from farbus.remoting.codegen.abi import BANNER
from farbus.remoting.spec import ENTRIES, OPERATIONS, Answer, Entry, Operation
from farbus.remoting.spec.details import detail_of

_OPERATIONS = {op.name: op for op in OPERATIONS}
_VIA = re.compile(r"(\w+)\((.*?)\)(?: -> (.*?))?(?: when (.*))?$")


def _names(parameters: str) -> list[str]:
    if parameters in ("", "void"):
        return []
    names = []
    for part in parameters.split(", "):
        found = re.search(r"(\w+)(?:\[\])?$", part)
        assert found, part
        names.append(found[1])
    return names


def generate_api_header() -> str:
    """The text of client_api.h: the driver API as programs call it, and as the shim defines it.

    Within the shim its functions have symbols of their own (CLIENT_BODY in client.h): what programs call by these
    names are the entries (:func:`generate_entries`), which the shim's own calls pass by.
    """
    out = [
        BANNER,
        "#ifndef FARBUS_GENERATED_CLIENT_API_H",
        "#define FARBUS_GENERATED_CLIENT_API_H",
        "",
        '#include "cuda_abi.h"',
        "",
        "/* Programs call functions by their names; what they do has other symbols in the shim (client.h). */",
        "#ifndef CLIENT_BODY",
        "#define CLIENT_BODY(name)",
        "#endif",
        "",
    ]
    for entry in ENTRIES:
        if entry.answer is Answer.UNSUPPORTED:
            continue
        parameters = entry.parameters or "void"
        out += [
            f"CUresult {symbol}({parameters}) CLIENT_BODY({symbol});"
            for symbol in filter(None, (entry.symbol, entry.per_thread_symbol))
        ]
    out += ["", "#endif", ""]
    return "\n".join(out)


def _pairs(text: str | None) -> list[tuple[str, str]]:
    if not text:
        return []
    pairs = []
    for part in text.split(","):
        left, right = part.split("=")
        pairs.append((left.strip(), right.strip()))
    return pairs


def _stub(entry: Entry) -> list[str]:
    found = _VIA.fullmatch(entry.via)
    if not found:
        raise ValueError(f"{entry.symbol}: via {entry.via!r} is malformed")
    op: Operation = _OPERATIONS[found[1]]
    requests, replies = _pairs(found[2]), _pairs(found[3])
    fields = {field.name: field for field in op.request}
    has_request = bool(op.request)
    lines = [f"CUresult {entry.symbol}({entry.parameters or 'void'})", "{"]
    if has_request:
        lines.append(f"\tstruct wire_{op.name} request = {{ 0 }};")
    if op.reply:
        lines.append(f"\tstruct wire_{op.name}_reply reply;")
    enter = "client_enter()" if op.context else "client_enter_any()"
    stream = [argument for name, argument in requests if fields[name].handle == "stream"]
    if op.context and stream:
        enter = f"client_enter_stream({stream[0]})"
    lines += [
        "\tCUresult result;",
        "",
        f"\tresult = {enter};",
        "\tif (result != CUDA_SUCCESS)",
        "\t\treturn result;",
    ]
    checks = [f"!{argument}" for _, argument in replies]
    if found[4]:
        checks.append(f"!({found[4]})")
    if checks:
        lines += [f"\tif ({' || '.join(checks)})", "\t\treturn CUDA_ERROR_INVALID_VALUE;"]
    for name, argument in requests:
        field = fields[name]
        if field.handle:
            lines += [
                f"\tresult = client_{field.handle}_wire({argument}, &request.{name});",
                "\tif (result != CUDA_SUCCESS)",
                "\t\treturn result;",
            ]
        else:
            lines.append(f"\trequest.{name} = {argument};")
    request = "&request, sizeof(request)" if has_request else "NULL, 0"
    opcode = f"WIRE_OP_{op.name.upper()}"
    if op.answer is Answer.POSTED:
        lines += [f"\treturn client_post({opcode}, {request}, NULL, 0);", "}", ""]
        return lines
    reply = "&reply, sizeof(reply)" if op.reply else "NULL, 0"
    lines.append(f"\tresult = client_call({opcode}, {request}, {reply});")
    if replies:
        lines.append("\tif (result == CUDA_SUCCESS) {")
        lines += [f"\t\t*{argument} = reply.{name};" for name, argument in replies]
        lines.append("\t}")
    lines += ["\treturn result;", "}", ""]
    return lines


def generate_stubs() -> str:
    """The text of client_stubs.c."""
    out = [
        BANNER,
        '#include "../client/exchange/exchange.h"',
        '#include "../client/ground/thread.h"',
        '#include "../client/handles/events.h"',
        '#include "../client/handles/streams.h"',
        '#include "client_api.h"',
        "",
    ]
    for entry in ENTRIES:
        names = ", ".join(_names(entry.parameters))
        parameters = entry.parameters or "void"
        if entry.answer is Answer.UNSUPPORTED:
            continue
        if entry.via:
            out += _stub(entry)
        elif entry.same_as:
            out += [
                f"CUresult {entry.symbol}({parameters})",
                "{",
                f"\treturn {entry.same_as}({names});",
                "}",
                "",
            ]
        if entry.per_thread_symbol:
            out += [
                f"CUresult {entry.per_thread_symbol}({parameters})",
                "{",
                "\tCUresult result;",
                "",
                "\tclient_per_thread_begin();",
                f"\tresult = {entry.symbol}({names});",
                "\tclient_per_thread_end();",
                "\treturn result;",
                "}",
                "",
            ]
    return "\n".join(out)


_ENTRY_MACROS = """\
#define EXPORTED __attribute__((visibility("default")))
#define RARE __attribute__((noinline, cold))

/* What a program calls: a jump to what it means, which the shim's own calls go to themselves. */
#define ENTRY(name, parameters, arguments) ENTRY_THAT(name, parameters, arguments, (void)0)

/* One of which a trace says more (remoting/spec/details.py). */
#define ENTRY_THAT(name, parameters, arguments, says)                                   \\
	RARE static CUresult traced_##name parameters                                   \\
	{                                                                               \\
		CLIENT_TRACED(#name, name arguments, says);                             \\
	}                                                                               \\
	EXPORTED CUresult entry_##name parameters __asm__(#name);                       \\
	CUresult entry_##name parameters                                                \\
	{                                                                               \\
		return client_trace_is_off() ? name arguments : traced_##name arguments; \\
	}

/* One that is not supported, by its number. */
#define UNSUPPORTED(name, number)                                                       \\
	EXPORTED CUresult entry_##name(void) __asm__(#name);                            \\
	CUresult entry_##name(void)                                                     \\
	{                                                                               \\
		CLIENT_TRACED(#name, client_unsupported(number), (void)0);              \\
	}
"""


def generate_entries() -> str:
    """The text of client_entries.c: what programs call, and the table behind cuGetProcAddress."""
    out = [
        BANNER,
        '#include "../client/calls/details.h"',
        '#include "../client/calls/lookup.h"',
        '#include "client_api.h"',
        "",
    ]
    out.append(_ENTRY_MACROS)
    for entry in ENTRIES:
        names, detail = ", ".join(_names(entry.parameters)), detail_of(entry.name)
        for symbol in filter(None, (entry.symbol, entry.per_thread_symbol)):
            call = f"{symbol}, ({entry.parameters or 'void'}), ({names})"
            if entry.answer is Answer.UNSUPPORTED:
                out.append(f"UNSUPPORTED({symbol}, {entry.number})")
            else:
                out.append(f"ENTRY_THAT({call}, {detail})" if detail else f"ENTRY({call})")
    ordered = sorted(ENTRIES, key=lambda entry: (entry.name, entry.version))
    out += [
        "",
        "/* Sorted by name, then by version. */",
        "const struct client_entry client_entries[] = {",
    ]
    for entry in ordered:
        version, per_thread = entry.per_thread[0] if entry.per_thread else 0, entry.per_thread_symbol
        reason = f'"{entry.reason}"' if entry.reason else "NULL"
        thread = f'(void *)entry_{per_thread}, "{per_thread}"' if per_thread else "NULL, NULL"
        out.append(
            f'\t{{ "{entry.name}", "{entry.symbol}", (void *)entry_{entry.symbol}, {entry.version},'
            f" {version}, {thread}, {entry.number}, {reason} }},"
        )
    out += ["};", "", f"const size_t client_entry_count = {len(ordered)};", ""]
    return "\n".join(out)


def generate_exports() -> str:
    """The text of client.map: the shim exports the driver API and nothing else."""
    out = ["# Generated by farbus.remoting.codegen from remoting/spec; do not edit.", "{", "global:"]
    symbols: set[str] = set()
    for entry in ENTRIES:
        symbols |= set(filter(None, (entry.symbol, entry.per_thread_symbol)))
    out += [f"\t{symbol};" for symbol in sorted(symbols)]
    out += ["local:", "\t*;", "};", ""]
    return "\n".join(out)
