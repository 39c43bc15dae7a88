"""What ``farbus doctor`` says of the encryption between programs and GPUs of other nodes."""

from __future__ import annotations

import pytest

from farbus.cli.findings import Verdict
from farbus.cli.node_settings import NodeSettings
from farbus.cli.tls_diagnosis import examine_tls


@pytest.mark.parametrize(
    ("there", "verdict", "found"),
    [
        ({"libssl.so.3", "libssl.so.1.1"}, Verdict.OK, "TLS between nodes, by libssl.so.3"),
        ({"libssl.so.1.1"}, Verdict.OK, "TLS between nodes, by libssl.so.1.1"),
        (set(), Verdict.WARNING, "no libssl.so.3: programs and GPUs of this node can't reach those of other nodes"),
    ],
)
def test_the_library_that_encrypts(there: set[str], verdict: Verdict, found: str) -> None:
    def loads(library: str) -> None:
        if library not in there:
            raise OSError

    (finding,) = examine_tls(NodeSettings(), loads=loads)
    assert (finding.verdict, finding.found) == (verdict, found)


def test_no_library_is_looked_for_where_it_is_off() -> None:
    def loads(library: str) -> None:
        raise AssertionError(library)

    (finding,) = examine_tls(NodeSettings(remoting_tls="off"), loads=loads)
    assert finding.verdict is Verdict.NOTE
    assert finding.found.startswith("remoting_tls is off")
