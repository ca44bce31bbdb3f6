"""Repairs of attention masks."""
