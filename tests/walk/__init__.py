"""What a new user tries: `python -m pytest tests/walk`, in one of five environments."""
