"""mlx-lm and mlx-vlm: generation does not stop, EOS tokens of the model's configs are dropped.

Why: A model names its stop tokens in three places: the tokenizer, ``config.json`` (sometimes under
    ``text_config``) and ``generation_config.json``. Releases read one place, or let one override
    another, and treat id 0 as unset. Gemma 4 ends a turn with 106, which is only in
    ``generation_config.json``.
How: The stop tokens are the union of all three; the release's own ids stay. In mlx-lm, missing ids
    are added to the loaded tokenizer. In mlx-vlm, they are added to the config of the loaded model,
    from which its engine fills and resets the stop list, and each stop list gets its tokenizer's
    ids too.
Upstream: mlx-lm reads only ``config.json`` below 0.30.1; from then on ``generation_config.json``
    overrides it, and from 0.32.0 the tokenizer's ids are added. mlx-vlm does the same from 0.3.10,
    and adds the tokenizer's ids from 0.7.0.
Retire when: No supported release drops an id of the three places.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ....core.verbs import Patch, after, result
from ..._shared.stop_tokens import read_folder_ids


def add_folder_ids(tokenizer: Any, model_path: Any, /) -> Any:
    """The tokenizer of mlx-lm, with every stop token of its folder."""
    if not hasattr(tokenizer, "eos_token_ids"):  # this call returns a detokenizer class
        return tokenizer
    wanted = [*read_folder_ids(Path(model_path)), *tokenizer_ids(tokenizer)]
    missing = [id_ for id_ in wanted if id_ not in tokenizer.eos_token_ids]
    if missing:
        tokenizer.eos_token_ids = {*tokenizer.eos_token_ids, *missing}
    return tokenizer


def add_config_ids(model: Any, model_path: Any, /) -> Any:
    """The model of mlx-vlm, whose config names every stop token of its folder."""
    config = getattr(model, "config", None)
    if config is not None:
        used = ids_of(getattr(config, "eos_token_id", None))
        missing = [id_ for id_ in read_folder_ids(Path(model_path)) if id_ not in used]
        # The release treats a bare 0 as unset, but not a list, and reads the name from any config.
        if missing or used == [0] or not hasattr(config, "eos_token_id"):
            config.eos_token_id = used + missing or None
    return model


def add_tokenizer_ids(criteria: Any, /) -> None:
    """Add its tokenizer's ids to a stop list of mlx-vlm."""
    used = ids_of(criteria.eos_token_ids)
    own = tokenizer_ids(getattr(criteria, "tokenizer", None))
    # A new list: the release may have set the list of a model's config.
    criteria.eos_token_ids = used + [id_ for id_ in own if id_ not in used]


def tokenizer_ids(tokenizer: Any) -> list[int]:
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


_CRITERIA = ("StoppingCriteria.__init__", "StoppingCriteria.reset")
PATCH = Patch(
    id="extra-eos",
    targets=(
        *(
            target
            for name in ("load_tokenizer", "load")  # the first below mlx-lm 0.28.4
            for target in result(
                f"mlx_lm.tokenizer_utils:{name}",
                add_folder_ids,
                fingerprint_of=(name, "TokenizerWrapper.__init__"),
            )
        ),
        *result("mlx_vlm.utils:load_model", add_config_ids, fingerprint_of=("load_config",)),
        *after(
            [f"mlx_vlm.utils:{name}" for name in _CRITERIA],
            add_tokenizer_ids,
            fingerprint_of=(*_CRITERIA, "resolve_eos_token_ids"),
        ),
    ),
)
