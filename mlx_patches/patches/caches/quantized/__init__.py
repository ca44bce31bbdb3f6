"""Quantized batch caches: their contract, and the patches that make releases follow it."""
