"""Patches of the servers of mlx-lm and mlx-vlm."""
