"""``python -m mlx_patches``."""

import sys

if not sys.flags.safe_path:
    # The working directory, which -m put first: reports are of the environment.
    del sys.path[0]

from .cli import main

main()
