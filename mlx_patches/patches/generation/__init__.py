"""Repairs of generators, samplers and quantization on the way."""
