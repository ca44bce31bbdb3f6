"""Defects that mlx-lm and mlx-vlm share."""
