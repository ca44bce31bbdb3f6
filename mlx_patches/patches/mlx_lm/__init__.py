"""Defects of mlx-lm."""
