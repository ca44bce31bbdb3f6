"""Patches of generators, samplers and the quantization of caches during generation."""
