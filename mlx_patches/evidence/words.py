"""The words in which the lab, its evidence and whoever reads it speak of cells and families."""

from __future__ import annotations

GREEN, RED = "green", "red"
INSENSITIVE, NOT_BUILT = "insensitive", "not-built"

# What one scenario saw, the worst first: a family is what its worst cell is.
NOT_APPLICABLE = "n/a"
VERDICTS = (RED, NOT_BUILT, INSENSITIVE, GREEN, NOT_APPLICABLE)
# A cell of the evidence is a letter.
LETTERS = {GREEN: "g", RED: "r", NOT_APPLICABLE: "n", INSENSITIVE: "i", NOT_BUILT: "x"}

# How a family fares in a release set: ``repaired`` is red without the patches, green with them.
REPAIRED = "repaired"
FATES = (GREEN, REPAIRED, RED, INSENSITIVE, NOT_BUILT)
