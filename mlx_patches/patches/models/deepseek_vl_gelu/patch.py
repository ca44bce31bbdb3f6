"""DeepSeek-VL in mlx-vlm: features of images are slightly off, from an approximated GELU.

Why: The vision tower computes GELU by its tanh approximation. The authors' tower is timm's, with
    the exact function.
How: The activation computes the exact function.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The tower's activation is ``nn.gelu``.
"""

from typing import Any

from ....core.verbs import Patch, mx, wrap


def compute_gelu(call: Any, activation: Any, input: Any) -> Any:
    return input * (1 + mx.erf(input / 2**0.5)) / 2


PATCH = Patch(
    id="deepseek-vl-gelu",
    every_model=True,
    wrong_solo="multi_modality",
    targets=wrap("mlx_vlm.models.multi_modality.vision:FastGELUActivation.__call__", compute_gelu),
)
