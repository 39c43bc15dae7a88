"""A server's certificates under many connections: replaced when they change, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from farbus.api.authority import Authority, write_credentials
from farbus.api.identity import Role
from farbus.api.server import tls_credentials
from farbus.api.trust import Trust


def test_a_configuration_is_replaced_only_when_the_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC asks for each connection, and crashes where one thread replaces what another shakes hands with.
    fetchers: list[Any] = []
    made = grpc.dynamic_ssl_server_credentials
    monkeypatch.setattr(
        grpc,
        "dynamic_ssl_server_credentials",
        lambda first, fetch, **more: (fetchers.append(fetch), made(first, fetch, **more))[1],
    )
    authority = Authority.create(tmp_path / "ca")
    credentials = write_credentials(tmp_path, "scheduler", authority.issue("scheduler", Role.SCHEDULER))
    trust = Trust(credentials)
    tls_credentials(trust)
    (fetch,) = fetchers
    assert [fetch(), fetch()] == [None, None]
    write_credentials(tmp_path, "scheduler", authority.issue("scheduler", Role.SCHEDULER))
    assert fetch() is not None
    assert fetch() is None
