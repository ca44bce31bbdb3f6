"""Computes the positions of a text at the limit of a tiny XLM-RoBERTa's config."""

from ....probes.encoders import build_encoder
from ....probes.kit import Result, Target, mx, require


def probe(target: Target) -> Result:
    """Red if a position is not in the table, or positions are not used."""
    require(target)
    model = build_encoder(target.module, pad_token_id=1)
    table = model.embeddings
    tokens = mx.full((1, model.config.max_position_embeddings), 5)
    positions = table.create_position_ids_from_input_ids(tokens, table.padding_idx)
    last, rows = positions.max().item(), table.position_embeddings.weight.shape[0]
    return Result(last != rows - 1, f"position {last} in a table of {rows}")
