"""Defects of mlx-vlm."""
