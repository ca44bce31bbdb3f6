"""Quantized batch caches: the patches that make releases follow their contract."""
