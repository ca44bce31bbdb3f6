"""The API for packages that contribute patches, or declare themselves hosts."""

from .core.contribution import Contribution, Host
from .core.errors import refusal
from .core.patch import MISSING, Attribute, Patch, Target, around

__all__ = ["MISSING", "Attribute", "Contribution", "Host", "Patch", "Target", "around", "refusal"]
