"""What the lab measured, as the package carries it."""
