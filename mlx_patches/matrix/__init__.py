"""The compat matrix: load it, check it, decide by it."""
