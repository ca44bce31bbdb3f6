"""Calls a tiny model with tokens, and with their embeddings as in mlx-vlm's prefill."""

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, tiny_of


def probe(target: Target) -> Result:
    """Red if their logits differ."""
    own_class_of(target)
    language = tiny_of(target).module
    tokens = mx.array([[5, 9, 2, 7]])
    embedded = language.model.embed_tokens(tokens)
    expected = language(tokens, inputs_embeds=embedded).logits
    actual = language(tokens).logits
    return compare_arrays(actual, expected, 1e-4, "logits'")
