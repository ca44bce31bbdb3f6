"""The compat matrix: loading, checking and deciding by it."""
