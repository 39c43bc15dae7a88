"""Generate native/generated/wire_ops.h: opcodes, messages and their table."""

from __future__ import annotations

from collections.abc import Sequence

from farbus.remoting.codegen.abi import BANNER
from farbus.remoting.spec import BULK_BYTES, EVENTS, OPERATIONS, SPEC_VERSION, Answer, Field

#: Kinds of handles that say to which server a request goes, where a program has several.
_ROUTES = frozenset({"context", "stream", "event"})
#: Most of them in one request.
_ROUTES_LIMIT = 2


def _padded(fields: Sequence[Field]) -> tuple[list[str], int]:
    """C members with explicit padding, and the size: a multiple of 8 bytes."""
    members: list[str] = []
    offset = 0
    pads = 0

    def pad(to: int) -> None:
        nonlocal offset, pads
        if offset % to:
            missing = to - offset % to
            members.append(f"\tuint8_t pad{pads}[{missing}];")
            pads += 1
            offset += missing

    for field in fields:
        ctype, size = field.scalar.value
        pad(size)
        array = f"[{field.count}]" if field.count > 1 else ""
        members.append(f"\t{ctype} {field.name}{array};")
        offset += field.size
    pad(8)
    return members, offset


def message_size(fields: Sequence[Field]) -> int:
    """Bytes of a message's fixed part."""
    return _padded(fields)[1]


def _routes(fields: Sequence[Field]) -> list[int]:
    """Where the handles that route a request lie: the number of the 64-bit word, from 1."""
    words = []
    for index, field in enumerate(fields):
        if field.handle in _ROUTES:
            before = _padded([*fields[:index], field])[1]
            words.append(before // 8)
    if len(words) > _ROUTES_LIMIT:
        raise ValueError(f"{len(words)} handles route one request: at most {_ROUTES_LIMIT} can")
    return words + [0] * (_ROUTES_LIMIT - len(words))


def _struct(name: str, fields: Sequence[Field]) -> list[str]:
    members, size = _padded(fields)
    if not members:
        return []
    return [
        f"struct {name} {{",
        *members,
        "};",
        f'_Static_assert(sizeof(struct {name}) == {size}, "wire layout");',
        "",
    ]


def generate_wire() -> str:
    """The text of wire_ops.h."""
    out = [
        BANNER,
        "#ifndef FARBUS_GENERATED_WIRE_OPS_H",
        "#define FARBUS_GENERATED_WIRE_OPS_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define WIRE_SPEC_VERSION {SPEC_VERSION}u",
        "/* Most bytes behind the fields of one frame. */",
        f"#define WIRE_BULK_BYTES {BULK_BYTES}u",
        "/* Set in the opcode of a reply. */",
        "#define WIRE_REPLY 0x8000u",
        "",
        "enum wire_op {",
    ]
    for op in OPERATIONS:
        out += [f"\t/* {op.doc} */", f"\tWIRE_OP_{op.name.upper()} = 0x{op.opcode:04x},"]
    for opcode, name, _, _, doc in EVENTS:
        out += [f"\t/* {doc} */", f"\tWIRE_EVENT_{name.upper()} = 0x{opcode:04x},"]
    out += ["};", "", f"#define WIRE_OP_LIMIT 0x{max(op.opcode for op in OPERATIONS) + 1:04x}", ""]
    for op in OPERATIONS:
        out += _struct(f"wire_{op.name}", op.request)
        out += _struct(f"wire_{op.name}_reply", op.reply)
    for _, name, fields, _, _ in EVENTS:
        out += _struct(f"wire_{name}", fields)
    out += [
        "struct wire_op_info {",
        "\tconst char *name;",
        "\tuint32_t request_size;\t/* bytes of the fixed part; name is NULL where no operation is */",
        "\tuint32_t reply_size;",
        "\tuint32_t request_tail;\t/* most bytes behind it */",
        "\tuint32_t reply_tail;",
        "\tuint8_t called;\t\t/* has a reply */",
        "\tuint8_t blocking;\t/* may wait for the device */",
        "\tuint8_t context;\t/* needs a current context */",
        "\t/* Words of the fixed part, from 1, that hold a context, a stream or an event; 0: no more. */",
        f"\tuint8_t routes[{_ROUTES_LIMIT}];",
        "};",
        "",
        "/* Indexed by opcode, WIRE_OP_LIMIT entries. */",
        "extern const struct wire_op_info wire_op_infos[];",
        "",
        "#endif",
        "",
    ]
    return "\n".join(out)


def generate_wire_table() -> str:
    """The text of wire_ops.c."""
    out = [
        BANNER,
        '#include "wire_ops.h"',
        "",
        "const struct wire_op_info wire_op_infos[WIRE_OP_LIMIT] = {",
    ]
    for op in OPERATIONS:
        out.append(
            f"\t[WIRE_OP_{op.name.upper()}] = {{"
            f' "{op.name}", {message_size(op.request)}, {message_size(op.reply)},'
            f" {op.request_tail}, {op.reply_tail}, {int(op.answer is Answer.CALLED)},"
            f" {int(op.blocking)}, {int(op.context)},"
            f" {{ {', '.join(map(str, _routes(op.request)))} }} }},"
        )
    out += ["};", ""]
    return "\n".join(out)
