"""A user's own program: apply, patched, needs, status, audit, and their errors."""

from __future__ import annotations

from ..condition import (
    EMPTY,
    MLX_LM,
    NO_END,
    OLDER,
    WITH_MLX,
    WITH_MLX_LM,
    Condition,
    python,
    sampled,
)
from ..samples import SOME, TYPO

USE = "import mlx_patches as m\n"
IN_EFFECT = "print(len(m.status().with_status('applied', 'pending')))"
TRY = """
try:
    {code}
except m.MlxPatchesError as error:
    print(f"MlxPatchesError: {{error}}")
else:
    print("nothing was raised")
"""


def wrong(says: str, code: str, message: str, **more: object) -> Condition:
    """A call that raises ``MlxPatchesError`` with a remedy."""
    return python(
        says, USE + TRY.format(code=code), first=f"MlxPatchesError: .*{message}", rows=6, **more
    )


CONDITIONS = [
    python(
        "importing it imports nothing heavy",
        USE + "import sys; print({'yaml', 'click', 'rich', 'wrapt', 'typing'} & {*sys.modules})",
        first=r"set\(\)$",
    ),
    python(
        "what is exported can be imported",
        "from mlx_patches import *; print(Audit, Need, Outcome, Report, Status, MlxPatchesWarning)",
        first="<class 'mlx_patches",
    ),
    *sampled(
        2,
        (
            python(
                f"the type hints of {name} can be read",
                f"{USE}import typing; print(typing.get_type_hints(m.{name})['return'])",
                first=".*(Report|Audit|Need)",
            )
            for name in ("apply", "restore", "status", "needs", "audit", "patched")
        ),
    ),
    python(
        "help of the package is there",
        "import mlx_patches; help(mlx_patches)",
        rows=NO_END,
        also=("apply", "restore", "patched"),
    ),
    python(
        "a name that is not there is an AttributeError",
        USE + "try: m.applyy\nexcept AttributeError as e: print(e)",
        first="module 'mlx_patches' has no attribute 'applyy'",
    ),
    # -- reports
    python(
        "the report of apply is a line",
        USE + "print(repr(m.apply()))",
        first="<Report: ",
        rows=3,
        where=WITH_MLX,
    ),
    python(
        "apply where no MLX package is installed warns of it",
        USE + "m.apply()",
        note="MlxPatchesWarning: no MLX package is installed in .*: nothing was patched",
        where=[EMPTY],
    ),
    python(
        "needs of a model that no package here has does not propose its own name",
        USE + "try: m.needs('qwen3_5')\nexcept m.MlxPatchesError as e: print(e)",
        first="no model type 'qwen3_5' in this environment: no MLX package is installed; a model's",
        where=[EMPTY],
    ),
    python("the names of the interface are listed", USE + "print(dir(m))", also="'Report'", rows=9),
    python(
        "the report of status is a line",
        USE + "m.apply(); print(repr(m.status()))",
        first="<Report: ",
        rows=3,
        where=WITH_MLX,
    ),
    python(
        "status before apply is empty",
        USE + "print(repr(m.status()), len(m.status()))",
        first="<Report: 0 patches in effect; ok; targets: none> 0",
    ),
    python(
        "a notebook shows a table",
        USE + "print(m.apply()._repr_html_()[:60])",
        first="<p>&lt;Report: ",
        where=WITH_MLX,
    ),
    python(
        "a report is JSON",
        USE + "import json; print(json.dumps(m.apply().as_dict())[:40])",
        first=r'\{"ok": true, "counts": ',
        where=WITH_MLX,
    ),
    python(
        "the repr of an audit is short", USE + "print(repr(m.audit()))", first="<?Audit", rows=10
    ),
    python(
        "an outcome says status and reason",
        USE + "print(m.apply(dry_run=True)[0])",
        first="Outcome.patch='",
        rows=6,
    ),
    python(
        "a dry run changes nothing",
        USE + "m.apply(dry_run=True); print(len(m.status()))",
        first="0$",
    ),
    python(
        "an unknown status is a ValueError",
        USE + "try: m.status().with_status('fine')\nexcept ValueError as e: print(e)",
        first="'fine' is not a valid Status",
    ),
    python(
        "apply twice is apply once",
        USE + "print(m.apply() == m.apply())",
        first="True",
        where=WITH_MLX,
    ),
    python(
        "restore undoes what apply did",
        f"{USE}m.apply(); m.restore(); {IN_EFFECT}",
        first="0$",
        where=WITH_MLX,
    ),
    python("restore without apply is fine", USE + "print(repr(m.restore()))", first="<Report: 0"),
    # -- patches in effect
    python(
        "patched is undone at the end of its block",
        USE + "import mlx_lm.models.cache as c\nbefore = vars(c.BatchRotatingKVCache).copy()\n"
        "with m.patched() as report:\n    print(len(report.applied) > 0)\n"
        "print(before == dict(vars(c.BatchRotatingKVCache)), len(m.status().applied))",
        first="True",
        also="True 0",
        imports_mlx=True,
        where=WITH_MLX_LM,
    ),
    python(
        "patched is undone where its block raises",
        f"{USE}try:\n    with m.patched(): raise KeyError\nexcept KeyError: {IN_EFFECT}",
        first="0$",
    ),
    python(
        "apply before the import waits for it",
        USE + "a = m.apply()\nimport mlx_lm.models.cache\n"
        "print(len(a.applied), len(m.status().applied) > 0)",
        first="0 True",
        imports_mlx=True,
        where=WITH_MLX_LM,
    ),
    python(
        "apply logs one line at INFO",
        "import logging; logging.basicConfig(level='INFO', format='%(name)s %(message)s',"
        "stream=__import__('sys').stdout)\n"
        + USE
        + "import mlx_lm.models.cache\nm.apply(); m.apply()",
        first=r"mlx_patches mlx_patches \d.*: \d+ patches in effect for mlx-lm 0",
        rows=2,
        imports_mlx=True,
        where=[MLX_LM, OLDER],
    ),
    python(
        "apply logs nothing where nothing is done",
        USE + "m.apply(); print('done')",
        first="done",
        rows=1,
        where=WITH_MLX,
    ),
    python(
        "status is cheap enough for a health endpoint",
        USE + "import time, mlx_lm.models.cache; m.apply(); m.status(); t = time.perf_counter();"
        "m.status(); print(time.perf_counter() - t < 0.05)",
        first="True",
        imports_mlx=True,
        where=WITH_MLX_LM,
    ),
    python(
        "strict raises nothing where all is well",
        USE + "print(m.apply(strict=True).ok)",
        first="True",
        where=WITH_MLX,
    ),
    # -- needs
    python(
        "needs names patches and their effects",
        USE + "for n in m.needs('gemma4'): print(n.patch, '|', n.effect, '|', n.reason)",
        also=r"[\w-]+ \| .* \| mlx-lm 0.31.3 has the defect",
        rows=NO_END,
        where=[OLDER],
    ),
    python(
        "needs of a model that is right in everything is empty",
        USE + "print(m.needs('longcat_flash'))",
        first=r"\(\)$",
        where=[MLX_LM],
    ),
    python(
        "needs of a model that lacks a feature names its patch",
        USE + "print([need.patch for need in m.needs('qwen3')])",
        first=r"\['[\w-]+'\]$",
        where=[MLX_LM],
    ),
    python(
        "a need is JSON",
        USE + "print(m.needs('llama')[0].as_dict())",
        first=r"\{'patch': '",
        where=[MLX_LM],
        rows=5,
    ),
    wrong(
        "needs of an unknown model gives a hint",
        "m.needs('gemma44')",
        "'gemma44' in mlx-.*did you mean 'gemma4'",
        where=WITH_MLX,
    ),
    wrong(
        "needs without MLX says what is missing",
        "m.needs('gemma4')",
        "no MLX package is installed",
        where=[EMPTY],
    ),
    wrong("needs of no model is refused", "m.needs('')", "''"),
    # -- mistakes
    wrong(
        "apply of a text takes a list",
        f"m.apply(patches={SOME!r})",
        rf"must be a list of ids: write \[{SOME!r}\]",
    ),
    wrong(
        "apply of an unknown patch gives a hint",
        f"m.apply(patches=[{TYPO!r}])",
        f"{TYPO!r}; did you mean {SOME!r}",
    ),
    wrong(
        "apply of an unknown model gives a hint",
        "m.apply(models=['gemma44'])",
        "'gemma44' in the matrix or the installed packages; did you mean 'gemma4'",
    ),
    wrong(
        "apply of a model by a typo is refused",
        "m.apply(models=['typo'])",
        "'typo' in the matrix or the installed packages",
    ),
    wrong(
        "apply of a model as a text takes a list",
        "m.apply(models='gemma4')",
        r"must be a list of model types: write \['gemma4'\]",
    ),
    wrong(
        "apply of a number takes a list",
        "m.apply(patches=3)",
        "must be a list of ids as strings, not .*3",
    ),
    wrong("apply of a list of numbers is refused", "m.apply(models=[3])", "as strings, not 3"),
    wrong(
        "apply of a profile by number is refused", "m.apply(profile=3)", "name of a profile, not 3"
    ),
    wrong(
        "apply of an unknown profile names those that there are",
        "m.apply(profile='junk')",
        "'junk'; choose from batch, server, security, safe",
    ),
    wrong("apply of no profile is refused", "m.apply(profile='')", "''; choose from batch"),
    wrong(
        "apply of a profile and of patches is refused",
        f"m.apply(patches=[{SOME!r}], profile='safe')",
        "not both",
    ),
    wrong("restore of a text takes a list", f"m.restore({SOME!r})", "must be a list of ids"),
    wrong(
        "restore of an unknown patch gives a hint",
        f"m.restore([{TYPO!r}])",
        f"did you mean {SOME!r}",
    ),
    wrong(
        "patched of an unknown patch raises as it is entered",
        "m.patched(patches=['nonsense']).__enter__()",
        "no patch 'nonsense'",
    ),
    wrong("audit of an unknown folder is refused", "m.audit(model='./nowhere')", "no such folder"),
    wrong("audit of an unknown host is refused", "m.audit(host='omlx')", "omlx is not installed"),
    wrong(
        "audit of a host without a name is refused", "m.audit(host='')", "name of a distribution"
    ),
    python(
        "a mistake is refused before anything is applied",
        USE + f"try: m.apply(patches=[{SOME!r}, 'nonsense'])\n"
        "except m.MlxPatchesError: print(len(m.status()))",
        first="0$",
    ),
    python(
        "auto raises nothing at all",
        "import mlx_patches.auto; print('on')",
        env={"MLX_PATCHES_PROFILE": "junk", "MLX_PATCHES_DISABLE": "junk"},
        first="on",
        note="junk",
    ),
    python(
        "an audit of a path object is of its folder",
        USE + "import pathlib; print(m.audit(model=pathlib.Path('m')).model.model_type)",
        first="llama",
        files={"m/config.json": '{"model_type": "llama"}'},
        where=[EMPTY, MLX_LM],
    ),
]
