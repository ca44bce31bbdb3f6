"""The audit: the installed releases, their known defects, and which of these are repaired."""
