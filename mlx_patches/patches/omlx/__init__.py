"""Patches of the host server omlx."""
