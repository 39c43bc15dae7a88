"""Addresses as people write them."""

from __future__ import annotations

import pytest

from farbus.errors import InvalidInput
from farbus.model.address import host_and_port, split_address


@pytest.mark.parametrize("address", ["9465", ":9465", "a:b", "a:70000"])
def test_an_address_that_can_not_be_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--metrics: .* is not ADDRESS:PORT"):
        split_address(address, field="--metrics", example="127.0.0.1:9465")


def test_an_address_is_split_into_host_and_port() -> None:
    assert split_address("[::1]:7412", field="--listen", example="0.0.0.0:7411") == ("::1", 7412)
    assert split_address("node7:0", field="--listen", example="0.0.0.0:7411") == ("node7", 0)


def test_an_address_of_ipv6_gets_its_brackets() -> None:
    assert host_and_port("::1", 7412) == "[::1]:7412"
    assert host_and_port("node7", 7412) == "node7:7412"
