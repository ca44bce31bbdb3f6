from mlx_patches.patches.generation.xtc_rows import patch as xtc_rows

from .mutants import recoded

MUTANTS = {"xtc-rows": recoded(xtc_rows, has_several_rows=lambda logits, /: False)}
