"""The stop tokens that a model's folder names."""

import logging
from functools import cache
from pathlib import Path

logger = logging.getLogger("mlx_patches")


def read_folder_ids(folder: Path) -> list[int]:
    """Every stop token that a model's folder names; logs a warning for a broken file."""
    from ...core.model_files import stop_ids

    by_file, problem = stop_ids(folder)
    if problem:
        warn(problem)
    return list(dict.fromkeys(id_ for ids in by_file.values() for id_ in ids))


@cache
def warn(problem: str) -> None:
    logger.warning("mlx_patches: %s", problem)
