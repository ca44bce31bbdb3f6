"""When this process gets which patches: sessions, import hooks, activation at start-up."""
