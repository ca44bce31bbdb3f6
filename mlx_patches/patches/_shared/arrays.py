"""``mlx.core`` for patches."""

from ...core.arrays import mx as mx
