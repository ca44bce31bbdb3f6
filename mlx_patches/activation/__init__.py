"""Activates patches in processes: sessions, import hooks, activation at start-up."""
