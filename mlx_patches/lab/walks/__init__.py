"""Walks: seeded random programs for a release's batch engine, the lab's last scenario.

``program`` draws a walk and serializes it to a line, ``walk`` runs it on ``engines``, ``oracle``
compares each row with its solo run, and ``shrink`` minimizes a red walk. ``child`` handles one
family in a process; ``runner`` starts the processes and continues after a crash or a hang.
"""
