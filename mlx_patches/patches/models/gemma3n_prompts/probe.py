"""Embeds a prompt like mlx-vlm, and pools an image whose rows differ and whose columns do not."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, tiny_of

LAST, WIDTH, SIDE = 90, 4, 4


def probe(target: Target) -> Result:
    """Red if a prompt's logits depend on who embeds it, or if an image is transposed."""
    kind = own_class_of(target)
    return probe_pooling(kind) if "Adapter" in target.name else probe_prompt(kind, target)


def probe_prompt(kind: Any, target: Target) -> Result:
    language = tiny_of(target).module
    vocabulary = SimpleNamespace(vocab_offset=LAST)
    model = SimpleNamespace(
        language_model=language,
        embed_vision=vocabulary,
        embed_audio=vocabulary,
        vocab_size_per_layer_input=LAST,
    )
    tokens = mx.array([[5, 9, 2, 7]])
    given = kind.get_input_embeddings(model, tokens)
    is_tuple = isinstance(given, tuple)  # before mlx-vlm 0.3.10
    embeds, layers = given if is_tuple else (given.inputs_embeds, given.per_layer_inputs)
    rows = {"inputs_embeds": embeds, "per_layer_inputs": layers}
    return compare_arrays(language(tokens, **rows).logits, language(tokens).logits, 1e-4, "logits'")


def probe_pooling(kind: Any) -> Result:
    mx.random.seed(0)
    adapter = kind(in_chs=[WIDTH], out_chs=2 * WIDTH, output_resolution=(SIDE, SIDE))
    rows = mx.random.normal((1, 2 * SIDE, 1, WIDTH))
    pooled = adapter([mx.broadcast_to(rows, (1, 2 * SIDE, 2 * SIDE, WIDTH))])
    off = mx.abs(pooled - pooled[:, :, :1]).max().item()
    return Result(off > 1e-5, f"the features of a row differ by {off:.2g}", off)
