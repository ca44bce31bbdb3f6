"""Which patches a process gets, and when: sessions, import hooks, activation at start-up."""
