"""The audit: the installed releases, their known defects, and the repaired ones."""
