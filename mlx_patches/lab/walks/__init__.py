"""Walks: seeded random programs through a release's own batch engine, the lab's last scenario.

``program`` draws a walk and writes it as a line, ``walk`` runs it on ``engines``, ``oracle`` holds
each row against the row alone, and ``shrink`` makes a red walk small. ``child`` does this for one
family in a process, and ``runner`` starts the processes and goes on where one ends or hangs.
"""
