"""Recurrent caches in a batch: ``contract.py`` says what they must do, the rest repairs it."""
