"""A turn does not end: some of a model's stop tokens are not used.

Why
    A model names its stop tokens in three places: the tokenizer, ``config.json`` (sometimes
    under ``text_config``) and ``generation_config.json``. Releases read one, or let one
    override another, and take id 0 for none. Gemma 4 ends a turn with 106, which is in
    ``generation_config.json`` alone.
How
    Stop tokens are the union of all three; none that the release uses is taken away. In
    mlx-lm the loaded tokenizer gets what is missing; in mlx-vlm the loaded model's config,
    from which its engine fills and resets the stop list, and each stop list its tokenizer's.
Upstream
    mlx-lm reads ``config.json`` alone below 0.30.1, lets ``generation_config.json`` override
    it since, and unites the tokenizer's from 0.32.0. mlx-vlm merges from 0.3.10 in the same
    way, and unites the tokenizer's from 0.7.0.
Retire when
    No supported release drops an id of the three places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from ...core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")


def tokenizer_loaded(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-lm: the tokenizer with every stop token of its folder."""
    tokenizer = load(model_path, *args, **kwargs)
    if not hasattr(tokenizer, "eos_token_ids"):  # asked for the detokenizer alone
        return tokenizer
    wanted = [*folder_ids(Path(model_path)), *tokenizer_ids(tokenizer)]
    missing = [id_ for id_ in wanted if id_ not in tokenizer.eos_token_ids]
    if missing:
        tokenizer.eos_token_ids = {*tokenizer.eos_token_ids, *missing}
    return tokenizer


def model_loaded(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: the model, its config naming every stop token of its folder."""
    model = load(model_path, *args, **kwargs)
    config = getattr(model, "config", None)
    if config is not None:
        used = ids_of(getattr(config, "eos_token_id", None))
        missing = [id_ for id_ in folder_ids(Path(model_path)) if id_ not in used]
        if missing or used == [0]:  # a bare 0 counts as none when the stop list is made
            config.eos_token_id = used + missing
    return model


def criteria_filled(fill: Callable[..., Any], criteria: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: a stop list with its tokenizer's own ids; a list of its own, nobody's config's."""
    result = fill(criteria, *args, **kwargs)
    used = ids_of(criteria.eos_token_ids)
    own = tokenizer_ids(getattr(criteria, "tokenizer", None))
    criteria.eos_token_ids = used + [id_ for id_ in own if id_ not in used]
    return result


def folder_ids(folder: Path) -> list[int]:
    """Every stop token that a model's folder names; a broken file is one warning and none."""
    from ...core.model_files import stop_ids

    by_file, problem = stop_ids(folder)
    if problem:
        warn(problem)
    return list(dict.fromkeys(id_ for ids in by_file.values() for id_ in ids))


@cache
def warn(problem: str) -> None:
    """Say it once a process."""
    logger.warning("mlx_patches: %s", problem)


def tokenizer_ids(tokenizer: Any) -> list[int]:
    """The stop token that a tokenizer has of its own, as a list."""
    return ids_of(getattr(tokenizer, "eos_token_id", None))


def ids_of(value: Any) -> list[Any]:
    """An id, ids or None, as a list without repetition; a broken file's text or number has none."""
    if isinstance(value, int):
        return [value]
    if isinstance(value, (str, dict)) or not isinstance(value, Iterable):
        return []
    ids: list[Any] = []
    for id_ in value:
        if id_ not in ids:
            ids.append(id_)
    return ids


PATCH = Patch(
    id="extra-eos",
    summary="a turn does not end: stop tokens of generation_config.json or config.json are dropped",
    targets=(
        *(
            Target(
                "mlx-lm",
                "mlx_lm.tokenizer_utils",
                name,  # load_tokenizer below 0.28.4, load since
                around(lambda load, *args, **kwargs: tokenizer_loaded(load, *args, **kwargs)),
                body=(name, "TokenizerWrapper.__init__"),
            )
            for name in ("load_tokenizer", "load")
        ),
        Target(
            "mlx-vlm",
            "mlx_vlm.utils",
            "load_model",
            around(lambda load, *args, **kwargs: model_loaded(load, *args, **kwargs)),
            body=("load_config",),
        ),
        *(
            Target(
                "mlx-vlm",
                "mlx_vlm.utils",
                f"StoppingCriteria.{name}",
                around(lambda fill, *args, **kwargs: criteria_filled(fill, *args, **kwargs)),
                body=(
                    "StoppingCriteria.__init__",
                    "StoppingCriteria.reset",
                    "resolve_eos_token_ids",
                ),
            )
            for name in ("__init__", "reset")
        ),
    ),
    probe="mlx_patches.probes.extra_eos:probe",
    module=__name__,
)
