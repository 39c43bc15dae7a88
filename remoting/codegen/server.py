"""Generate the server's half: the table of driver functions and the dispatch."""

from __future__ import annotations

import re
from functools import cache

from farbus.remoting.codegen.abi import BANNER
from farbus.remoting.spec import ENTRIES, HANDLE_KINDS, OPERATIONS, Answer, Operation

#: How a reply field is declared for the driver to write into, by its C type in
#: the driver's prototype (``T *`` parameter) and the message's own type.
_CALL = re.compile(r"(\w+)\((.*)\)$")


@cache
def _parameters() -> dict[str, list[str]]:
    return {
        entry.symbol: [] if entry.parameters in ("", "void") else entry.parameters.split(", ")
        for entry in ENTRIES
        if entry.answer is not Answer.UNSUPPORTED
    }


def _pointee(symbol: str, index: int) -> str:
    parameter = _parameters()[symbol][index]
    found = re.fullmatch(r"(.*?)\s*\*\s*\w+", parameter)
    if not found:
        raise ValueError(f"{symbol}: parameter {index} ({parameter}) is not a pointer")
    return found[1]


def generate_driver_header() -> str:
    """The text of server_driver.h: every driver function that the server may call."""
    out = [
        BANNER,
        "#ifndef FARBUS_GENERATED_SERVER_DRIVER_H",
        "#define FARBUS_GENERATED_SERVER_DRIVER_H",
        "",
        '#include "cuda_abi.h"',
        "",
        "/* A member is NULL where the driver lacks the function. */",
        "struct server_driver {",
    ]
    rows = []
    for entry in ENTRIES:
        if entry.answer is Answer.UNSUPPORTED or entry.same_as:
            continue
        parameters = entry.parameters or "void"
        out.append(f"\tCUresult (*{entry.symbol})({parameters});")
        rows.append(f'\tX({entry.symbol}, "{entry.name}", {entry.version})')
    out += [
        "};",
        "",
        "/* X(symbol, name for cuGetProcAddress, version) */",
        "#define SERVER_DRIVER_FUNCTIONS(X) \\",
        " \\\n".join(rows),
        "",
        "#endif",
        "",
    ]
    return "\n".join(out)


def _handler(op: Operation) -> list[str]:
    found = _CALL.fullmatch(op.driver)
    assert found, op.driver
    symbol = found[1]
    arguments = [part.strip() for part in found[2].split(",")] if found[2] else []
    requests = {field.name: field for field in op.request}
    lines = [f"static CUresult serve_{op.name}(struct server_call *call)", "{"]
    declarations, resolves, stores, passed = [], [], [], []
    if any(name in requests for name in arguments):
        declarations.append(f"\tconst struct wire_{op.name} *request = call->request;")
    if op.reply:
        declarations.append(f"\tstruct wire_{op.name}_reply *reply = call->reply;")
    for index, argument in enumerate(arguments):
        if argument.startswith("&"):
            name = argument[1:]
            declarations.append(f"\t{_pointee(symbol, index)} {name} = 0;")
            stores.append(f"\t\treply->{name} = {name};")
            passed.append(argument)
        elif argument in requests and requests[argument].handle:
            kind = requests[argument].handle
            declarations.append(f"\t{HANDLE_KINDS[kind]} {argument};")
            resolves += [
                f"\tresult = server_resolve_{kind}(call, request->{argument}, &{argument});",
                "\tif (result != CUDA_SUCCESS)",
                "\t\treturn result;",
            ]
            passed.append(argument)
        elif argument in requests:
            passed.append(f"request->{argument}")
        else:
            passed.append(argument)
    declarations.append("\tCUresult result;")
    lines += declarations
    lines += [
        "",
        f"\tif (!call->driver->{symbol})",
        "\t\treturn CUDA_ERROR_NOT_SUPPORTED;",
        *resolves,
        f"\tresult = call->driver->{symbol}({', '.join(passed)});",
    ]
    if stores:
        lines += ["\tif (result == CUDA_SUCCESS) {", *stores, "\t}"]
    lines += ["\treturn result;", "}", ""]
    return lines


def generate_dispatch() -> str:
    """The text of server_dispatch.c."""
    out = [BANNER, '#include "../server/ground/resolve.h"', ""]
    for op in OPERATIONS:
        if op.driver:
            out += _handler(op)
    out.append("const server_handler server_handlers[WIRE_OP_LIMIT] = {")
    out += [f"\t[WIRE_OP_{op.name.upper()}] = serve_{op.name}," for op in OPERATIONS]
    out += ["};", ""]
    return "\n".join(out)


def generate_handlers_header() -> str:
    """The text of server_handlers.h: prototypes of the handlers written by hand."""
    out = [
        BANNER,
        "#ifndef FARBUS_GENERATED_SERVER_HANDLERS_H",
        "#define FARBUS_GENERATED_SERVER_HANDLERS_H",
        "",
        '#include "cuda_abi.h"',
        "",
        "struct server_call;",
        "",
    ]
    for op in OPERATIONS:
        if not op.driver:
            out += [f"/* {op.doc} */", f"CUresult serve_{op.name}(struct server_call *call);"]
    out += ["", "#endif", ""]
    return "\n".join(out)
