"""Unmodified host servers, with a tiny model, under concurrent requests."""
