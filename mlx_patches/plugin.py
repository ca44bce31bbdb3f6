"""The API for packages that contribute patches, or declare themselves hosts."""

from .core.contribution import Contribution, Host
from .core.errors import refusal
from .core.patch import MISSING, Attribute, Patch, Target, around
from .core.verbs import after, argument, before, by_rows, everywhere, family, result, tensors, wrap

__all__ = [
    "MISSING",
    "Attribute",
    "Contribution",
    "Host",
    "Patch",
    "Target",
    "after",
    "argument",
    "around",
    "before",
    "by_rows",
    "everywhere",
    "family",
    "refusal",
    "result",
    "tensors",
    "wrap",
]
