"""Patches of the host server vllm-mlx."""
