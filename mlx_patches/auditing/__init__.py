"""What is installed, what is wrong with it, and what is repaired."""
