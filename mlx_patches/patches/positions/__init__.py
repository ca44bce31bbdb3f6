"""Repairs of positions: rotary embeddings, offsets, rope deltas."""
