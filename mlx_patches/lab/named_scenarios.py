"""The scenarios that run only where they are named: of one request alone, and of images."""

from __future__ import annotations

from . import alone_scenarios, image_scenarios  # noqa: F401 - each registers its own
from .registry import NAMED

__all__ = ["NAMED"]
