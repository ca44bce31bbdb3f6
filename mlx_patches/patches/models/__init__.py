"""Patches of individual models."""
