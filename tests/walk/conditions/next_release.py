"""Code under another number, and other code under a known number: the code decides."""

from __future__ import annotations

from ..condition import MLX_LM, NO_END, command, python
from ..things import copied

RENUMBERED = copied("mlx_lm", "0.33.0")
CACHE = ("def make_prompt_cache(", "CHANGED = True\n\n\ndef make_prompt_cache(")
MAMBA = (
    "def __call__(self, inputs: mx.array, cache=None):",
    "def __call__(self, inputs, cache=None):",
)
APPLIED = """
import warnings
warnings.simplefilter("error")
import mlx_patches
mlx_patches.apply()
import mlx_lm.server, mlx_lm.models.mamba, mlx_lm.models.jamba
found = {}
for one in mlx_patches.status():
    found.setdefault(str(one.status), set()).add(one.target)
audited = {o.target: str(o.status) for o in mlx_patches.audit().outcomes if o.status != "pending"}
for status, targets in sorted(found.items()):
    print(status, len(targets), {audited.get(t, status) for t in targets} - {"pending"} or "")
for name in ("mamba", "jamba"):
    path = f"mlx_lm.models.{name}:Model.__call__"
    print(name, [status for status, targets in found.items() if path in targets])
"""

CONDITIONS = [
    command(
        "a release with the same code under a new number is measured",
        "audit",
        code=1,
        first="38 known defects",
        also=r"mlx-lm 0\.33\.0: 51 of 126 model families wrong as released .*the patches repair",
        never=("drifted", "not measured"),
        where=[MLX_LM],
        files=RENUMBERED,
    ),
    command(
        "a model with the same code under a new number has its verdict",
        "audit",
        "--model",
        "qwen3",
        first=r"qwen3 is right in a batch here \(mlx-lm 0\.33\.0\)",
        also="the same code was measured as mlx-lm 0.32.2",
        where=[MLX_LM],
        files=RENUMBERED,
    ),
    command(
        "a release with the same code under a new number has no drifted target",
        "audit",
        "-v",
        code=1,
        also="recurrent-padding +mlx_lm.models.mamba:MambaBlock.__call__ +disabled",
        never="drifted",
        rows=NO_END,
        where=[MLX_LM],
        files=RENUMBERED,
    ),
    python(
        "the same code under a new number is repaired in the process and warned of by nobody",
        APPLIED,
        also=(r"mamba \['applied'\]", r"jamba \['applied'\]"),
        never="drifted",
        where=[MLX_LM],
        files=RENUMBERED,
        imports_mlx=True,
        seconds=60.0,
    ),
    command(
        "an edited copy on the path is not the release whose number it has",
        "audit",
        "--model",
        "qwen3",
        code=2,
        first=r"qwen3 was not measured in mlx-lm 0\.32\.2: this is not the 0\.32\.2 release:",
        also=(
            r"mlx_lm\.models\.cache differ",
            r"Next: +install mlx-lm 0\.32\.2, or upgrade mlx-patches",
            "Proof: mlx-patches lab --model qwen3",
        ),
        where=[MLX_LM],
        files=copied("mlx_lm", cache=CACHE),
    ),
    command(
        "a model that was edited is not measured, and the others are",
        "audit",
        code=1,
        also="of 126 model families wrong .*; the patches repair all; 1 have? other code",
        where=[MLX_LM],
        files=copied("mlx_lm", mamba=MAMBA),
    ),
    python(
        "a model that was edited is not repaired, and the others are",
        APPLIED,
        also=(r"mamba \['drifted'\]", r"jamba \['applied'\]"),
        where=[MLX_LM],
        files=copied("mlx_lm", "0.33.0", mamba=MAMBA),
        imports_mlx=True,
        seconds=60.0,
    ),
]
