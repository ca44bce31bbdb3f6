"""A new user's commands: `python -m pytest tests/walk`, in one of five environments."""
