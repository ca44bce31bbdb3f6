"""Computes the position of the last token that a host leaves of a text, in a tiny XLM-RoBERTa."""

from types import SimpleNamespace
from typing import Any

from ....probes.encoders import build_encoder
from ....probes.kit import Result, Target, import_module, module_of, mx, require

ROWS, PAD = 64, 1
# A tokenizer without a limit.
TOKENIZER = SimpleNamespace(model_max_length=10**30)


def probe(target: Target) -> Result:
    """Red if the position is not in the table, or positions are not used."""
    require(target)
    last = find_last(target)
    return Result(last != ROWS - 1, f"position {last} in a table of {ROWS}")


def find_last(target: Target) -> Any:
    options: dict[str, Any] = {"pad_token_id": PAD, "max_position_embeddings": ROWS}
    if target.module.startswith("vllm_mlx"):
        config = {"model_type": "xlm-roberta", **options}
        module_of(target)._MLXClassifierWrapper(config, {}, 1)
        cut: Any = import_module("vllm_mlx.utils.truncation")
        return PAD + cut.resolve_max_length(config, TOKENIZER)
    if target.module.startswith("mlx_vlm"):
        read = SimpleNamespace(model_type="xlm-roberta", **options)
        return PAD + module_of(target)._sequence_max_length(read, TOKENIZER)
    model = build_encoder(target.module, **options)
    tokens = mx.full((1, model.config.max_position_embeddings), 5)
    return model.embeddings.create_position_ids_from_input_ids(tokens, PAD).max().item()
