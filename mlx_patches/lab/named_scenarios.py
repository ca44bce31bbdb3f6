"""Scenarios that run only if named: those of single requests, and of images with features."""

from __future__ import annotations

from . import image_scenarios, solo_scenarios  # noqa: F401 - each registers its scenarios
from .registry import NAMED

__all__ = ["NAMED"]
