"""Patches of loading: configs, checkpoints, stop tokens, adapters, code in a model's folder."""
