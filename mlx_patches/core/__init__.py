"""Patches, sites and what is in effect: the only code that writes to live attributes."""
