"""Repairs of single models' own calls."""
