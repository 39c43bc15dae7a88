"""What an operator sets about identity, and what is refused of it."""

from __future__ import annotations

import pytest

from farbus.api.authority import Credentials
from farbus.errors import InvalidInput
from farbus.model.rules import Quota
from farbus.scheduler.config import SchedulerConfig

FILES = Credentials(authority="ca.crt", certificate="s.crt", key="s.key")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"operator_only": ("Sumbit",)}, "operator_only: there is no method 'Sumbit'"),
        ({"operator_only": ("Session",)}, "operator_only: there is no method 'Session'"),
        ({"join": "0.0.0.0:7413"}, "--join: nothing to issue certificates with; give the authority with --ca"),
        ({"join": "7413", "ca_directory": "ca"}, "--join: '7413' is not ADDRESS:PORT"),
        ({"operator_nodes": ("",)}, "operator_nodes: one is empty; use names and patterns of nodes"),
        (
            {"chassis_servers": {"falcon": ("",)}},
            "chassis_servers: a name of a chassis or of a node of 'falcon' is empty",
        ),
        ({"chassis_servers": {"": ("a",)}}, "chassis_servers: a name of a chassis or of a node of '' is empty"),
        ({"staging_bytes": -1}, "staging_bytes: -1 is less than zero"),
        ({"staging_files_per_user": -1}, "staging_files_per_user: -1 is less than zero"),
        ({"staging_bytes": 2**63}, "staging_bytes: more than 9223372036854775807"),
        ({"quota": Quota(devices=2**63)}, "quota.devices: more than 9223372036854775807; leave it out for no limit"),
        ({"defragment_jobs": 2**63}, "defragment_jobs: more than 9223372036854775807"),
        ({"listen": "0.0.0.0:²"}, "--listen: '0.0.0.0:²' is not ADDRESS:PORT"),
    ],
)
def test_impossible_setting_is_named(settings: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        SchedulerConfig(state="st", credentials=FILES, **settings).check()


def test_methods_of_people_can_be_kept_for_operators() -> None:
    SchedulerConfig(state="st", credentials=FILES, operator_only=("Submit", "Hold")).check()
