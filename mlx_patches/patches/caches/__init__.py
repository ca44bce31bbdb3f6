"""Repairs of cache classes."""
