"""What a new user tries, as a script: `python -m pytest tests/walk` in one of five environments."""
