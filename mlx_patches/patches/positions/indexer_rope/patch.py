"""DeepSeek V3.2 attends to the wrong tokens of a long text.

Why
    From ``index_topk`` tokens on (2,048), an indexer chooses the tokens that a layer attends to.
    Its queries and keys have to be rotated in halves; releases rotate them in pairs, like those
    of the attention. The scores are meaningless, and the layer attends to the wrong tokens.
How
    The indexer of a model of the type ``deepseek_v32`` rotates in halves. Other models with this
    indexer, GLM 5 among them, rotate in pairs and do not change.
Upstream
    mlx-lm 0.32.0 (#1431, commit 2ed22318). Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release rotates the indexer of DeepSeek V3.2 in pairs.
"""

from __future__ import annotations

from typing import Any

from ....core.patch import Patch
from ....core.verbs import after, family


def set_rope_layout(indexer: Any, config: Any, /) -> None:
    """Set whether an indexer's rope pairs halves of the head, by its config."""
    if pairs_halves(config):
        indexer.rope.traditional = False


def pairs_halves(args: Any) -> bool:
    """Whether the rope of the indexer pairs the two halves of a head."""
    return args.model_type == "deepseek_v32" and not getattr(args, "indexer_rope_interleave", False)


PATCH = Patch(
    id="indexer-rope",
    every_model=True,
    wrong_alone="deepseek_v32",
    changes_alone=True,
    summary="DeepSeek V3.2 attends to the wrong tokens in contexts over 2,048 tokens",
    targets=after(family("deepseek_v32", "Indexer.__init__"), set_rope_layout),
)
