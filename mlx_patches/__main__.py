"""The command ``mlx-patches``, also as ``python -m mlx_patches``."""

import sys


def main() -> None:
    try:
        from .cli import main  # it takes 0.2 s, in which the user may interrupt it

        main()
    except KeyboardInterrupt:
        print("mlx-patches: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working directory, which -m put first: reports are of the environment.
        del sys.path[0]
    main()
