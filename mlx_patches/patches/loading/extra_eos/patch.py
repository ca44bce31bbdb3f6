"""A turn does not end: some of a model's stop tokens are not used.

Why
    A model names its stop tokens in three places: the tokenizer, ``config.json`` (sometimes
    under ``text_config``) and ``generation_config.json``. Releases read one place, or let one
    override another, and treat id 0 as unset. Gemma 4 ends a turn with 106, which is only in
    ``generation_config.json``.
How
    The stop tokens are the union of all three; ids that the release uses are all kept. In mlx-lm,
    missing ids are added to the loaded tokenizer. In mlx-vlm, they are added to the config of the
    loaded model, from which its engine fills and resets the stop list, and each stop list gets
    its tokenizer's ids too.
Upstream
    mlx-lm reads only ``config.json`` below 0.30.1; from then on ``generation_config.json``
    overrides it, and from 0.32.0 the tokenizer's ids are added. mlx-vlm does the same from 0.3.10,
    and adds the tokenizer's ids from 0.7.0.
Retire when
    No supported release drops an id of the three places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.stop_tokens import folder_ids
from ..._shared.targets import at


def tokenizer_loaded(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-lm: load the tokenizer, with every stop token of its folder."""
    tokenizer = load(model_path, *args, **kwargs)
    if not hasattr(tokenizer, "eos_token_ids"):  # this call returns a detokenizer class
        return tokenizer
    wanted = [*folder_ids(Path(model_path)), *tokenizer_ids(tokenizer)]
    missing = [id_ for id_ in wanted if id_ not in tokenizer.eos_token_ids]
    if missing:
        tokenizer.eos_token_ids = {*tokenizer.eos_token_ids, *missing}
    return tokenizer


def model_loaded(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: load the model, and name every stop token of its folder in its config."""
    model = load(model_path, *args, **kwargs)
    config = getattr(model, "config", None)
    if config is not None:
        used = ids_of(getattr(config, "eos_token_id", None))
        missing = [id_ for id_ in folder_ids(Path(model_path)) if id_ not in used]
        if missing or used == [0]:  # the release treats a bare 0 as unset, but not a list
            config.eos_token_id = used + missing
    return model


def criteria_filled(fill: Callable[..., Any], criteria: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm: fill a stop list, also with its tokenizer's ids."""
    result = fill(criteria, *args, **kwargs)
    used = ids_of(criteria.eos_token_ids)
    own = tokenizer_ids(getattr(criteria, "tokenizer", None))
    # A new list: the release may have set the list of a model's config.
    criteria.eos_token_ids = used + [id_ for id_ in own if id_ not in used]
    return result


def tokenizer_ids(tokenizer: Any) -> list[int]:
    """The tokenizer's own stop token, as a list."""
    return ids_of(getattr(tokenizer, "eos_token_id", None))


def ids_of(value: Any) -> list[Any]:
    """An id, ids or None as a list without repetition; empty for any other value."""
    if isinstance(value, int):
        return [value]
    if isinstance(value, (str, dict)) or not isinstance(value, Iterable):
        return []
    ids: list[Any] = []
    for id_ in value:
        if id_ not in ids:
            ids.append(id_)
    return ids


_UTILS = ("mlx-vlm", "mlx_vlm.utils")
_CRITERIA = ("StoppingCriteria.__init__", "StoppingCriteria.reset")
PATCH = Patch(
    id="extra-eos",
    every_model=True,
    summary=(
        "mlx-lm and mlx-vlm: generation does not stop, EOS tokens of the "
        "model's configs are dropped"
    ),
    targets=(
        *(
            Target(
                "mlx-lm",
                "mlx_lm.tokenizer_utils",
                name,  # load_tokenizer below 0.28.4, load since
                around(tokenizer_loaded),
                fingerprint_of=(name, "TokenizerWrapper.__init__"),
            )
            for name in ("load_tokenizer", "load")
        ),
        *at([_UTILS], {"load_model": around(model_loaded)}, fingerprint_of=("load_config",)),
        *at(
            [_UTILS],
            dict.fromkeys(_CRITERIA, around(criteria_filled)),
            fingerprint_of=(*_CRITERIA, "resolve_eos_token_ids"),
        ),
    ),
)
