"""The fixtures of the tests against releases."""

from ..releases.conftest import device_reads, patched, seeded, ungated

__all__ = ["device_reads", "patched", "seeded", "ungated"]
