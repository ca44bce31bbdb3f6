"""Families whose batch needs only one model call, with positions and masks by row.

Each module repairs one family; the targets of ``row-by-row`` use them.
"""
