"""What probes share: ``from ....probes.kit import Result, Target, mx, tiny_of``."""

from importlib import import_module as import_module

from ..core.arrays import mx as mx
from ..core.patch import Target as Target
from ..evidence.results import NotApplicable as NotApplicable
from ..evidence.results import Result as Result
from .batch_invariance import *  # noqa: F403
from .fixtures import *  # noqa: F403
