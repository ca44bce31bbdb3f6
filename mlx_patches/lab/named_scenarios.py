"""Scenarios that run only if named: those of single requests, then those of images."""

from . import solo_scenarios  # noqa: F401  registers its scenarios, in the order of the pages

# isort: split
from . import image_scenarios  # noqa: F401
from .registry import NAMED

__all__ = ["NAMED"]
