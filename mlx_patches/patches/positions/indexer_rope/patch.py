"""DeepSeek V3.2 attends to the wrong tokens in contexts over 2,048 tokens.

Why: In contexts longer than ``index_topk`` (2,048), an indexer selects the tokens that a layer
    attends to. RoPE of its queries and keys should pair the halves of a head; releases pair
    neighbouring dimensions, as in the attention. The scores are meaningless, and the layer attends
    to the wrong tokens.
How: The indexer's RoPE pairs halves in models of the type ``deepseek_v32``. Other models with this
    indexer, such as GLM 5, pair neighbours and are unchanged.
Upstream: mlx-lm 0.32.0 (#1431, commit 2ed22318). Not fixed in mlx-vlm 0.7.10.
Retire when: No supported release pairs neighbouring dimensions in the indexer of DeepSeek V3.2.
"""

from typing import Any

from ....core.verbs import Patch, after, family


def set_rope_layout(indexer: Any, config: Any, /) -> None:
    if is_paired_by_halves(config):
        indexer.rope.traditional = False


def is_paired_by_halves(args: Any) -> bool:
    return args.model_type == "deepseek_v32" and not getattr(args, "indexer_rope_interleave", False)


PATCH = Patch(
    id="indexer-rope",
    every_model=True,
    wrong_solo="deepseek_v32",
    targets=after(family("deepseek_v32", "Indexer.__init__"), set_rope_layout),
)
