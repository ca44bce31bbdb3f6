"""Repairs of loading: stop tokens, processors, code of a model's folder."""
