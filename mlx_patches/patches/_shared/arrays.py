"""``mlx.core``, imported at first use."""

from ...core.arrays import mx as mx
