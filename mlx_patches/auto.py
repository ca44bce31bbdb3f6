"""``import mlx_patches.auto``: the one-line form of ``mlx_patches.apply()``.

Meant for places where an exception would take a host down: a failure is logged.
"""

import logging

import mlx_patches

try:
    mlx_patches.apply()
except Exception:
    logging.getLogger("mlx_patches").warning("mlx_patches is not active", exc_info=True)
