"""A broken version of ``yarn-range``: with it the probe must be red."""

from __future__ import annotations

import math
from types import SimpleNamespace

from mlx_patches.patches.positions.yarn_range import patch as yarn_range

from .mutants import replaced

MUTANTS = {"yarn-range": replaced(yarn_range, math=SimpleNamespace(log=math.log, pi=3.0))}
