"""Phi-4 SigLIP in mlx-vlm: loading it runs Python code from the model's folder.

Why: The processor passes ``trust_remote_code`` to the tokenizer, which needs none of the model's
    code. The code is run anyway, and fails if it imports CUDA packages.
How: The tokenizer is loaded without it.
Upstream: mlx-vlm 0.5.0.
Retire when: No supported release is older than mlx-vlm 0.5.0.
"""

from typing import Any

from ....core.verbs import Patch, wrap


def load_without_code(load: Any, cls: Any, path: Any, **kwargs: Any) -> Any:
    return load(cls, path, **distrust(kwargs))


def distrust(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "trust_remote_code": False}


PATCH = Patch(
    id="phi4-siglip-code",
    severity="security",
    targets=wrap(
        "mlx_vlm.models.phi4_siglip.processing_phi4_siglip:Phi4SigLipProcessor.from_pretrained",
        load_without_code,
    ),
)
