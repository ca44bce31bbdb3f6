"""``python -m mlx_patches``."""

from .cli import main

main()
