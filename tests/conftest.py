"""A share of the tests, if a session asks for one; it differs between release sets."""

import os
from zlib import crc32

import pytest

from mlx_patches.lab.runner import environment

# pytest explains only the assertions of tests and of what is registered.
pytest.register_assert_rewrite("tests.conformance")

SHARE = "MLX_PATCHES_TEST_SHARE"
EVERY = "MLX_PATCHES_TEST_EVERY"
# Conformance tests that start a process for each patch; each set runs only a share of them.
PROCESSES = ("another_process", "before_import")
PROCESSES_SHARE = 40


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one test of N, with N in MLX_PATCHES_TEST_SHARE.

    MLX_PATCHES_TEST_EVERY names files that keep all tests; MLX_PATCHES_TEST_ALL=1 keeps all.
    """
    if os.environ.get("MLX_PATCHES_TEST_ALL"):
        return
    share = int(os.environ.get(SHARE, "1"))
    every = tuple(f"{file}::" for file in os.environ.get(EVERY, "").split())

    def is_chosen(item: pytest.Item) -> bool:
        if item.nodeid.startswith(every):
            return True
        processes = any(name in item.name for name in PROCESSES)
        of = max(share, PROCESSES_SHARE) if processes else share
        return of == 1 or crc32(f"{environment()} {item.nodeid}".encode()) % of == 0

    left_out = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_chosen(item)]
