"""Names that others have given to files, as people and other programs can be told them."""

from __future__ import annotations


def shown(name: str) -> str:
    """Return a path, or words that quote one, on one line: what is no UTF-8 or can't be printed by its number.

    Python keeps bytes that are no UTF-8 as halves of surrogate pairs, which neither JSON nor protocol buffers take.
    """
    return "".join(one if one.isprintable() else _number_of(one) for one in name)


def _number_of(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return ascii(character)[1:-1]
