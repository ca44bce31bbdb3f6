"""Families whose batch takes one call of the model, with positions and masks by row.

Each module is one family's repair; ``row_by_row`` names them in its targets.
"""
