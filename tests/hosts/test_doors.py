"""Attacks reach through real servers exactly what doors.toml records.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`. After
a change of the patches: `python -m tests.hosts.doors SET --write`, then `make write`.
"""

from __future__ import annotations

import sys

import pytest

from . import doors
from .test_hosts import SET

SERVERS = [server for server in doors.SERVERS if server.set == SET]
if not SERVERS:
    pytest.skip("this host is not attacked", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("reads are seen by inotify, on Linux", allow_module_level=True)
# `make test-rest` attacks this server; `make hosts` all.
QUICK = "mlx_vlm.server 0.7.10"


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(one, id=one.name, marks=[] if one.name == QUICK else [pytest.mark.slow])
        for one in SERVERS
    ],
)
def test_outcomes_are_those_recorded(server, tmp_path):
    outcomes = doors.measure(server, tmp_path)
    assert outcomes == doors.load()[server.name]
    still = {door: text for door in outcomes if "open" in (text := doors.verdict(outcomes[door]))}
    assert not still
