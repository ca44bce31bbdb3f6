"""Patches, sites and their manager: the only code that writes to live attributes."""
