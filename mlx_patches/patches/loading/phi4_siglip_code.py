"""Loading Phi-4 SigLIP runs Python code from the model's folder, to get a tokenizer.

Why
    The processor hands ``trust_remote_code`` on to the tokenizer, which needs none of the code
    that comes with the model: it is run anyhow, and fails where it asks for CUDA packages.
How
    The tokenizer is loaded without it.
Upstream
    mlx-vlm 0.5.0.
Retire when
    No supported release is older than mlx-vlm 0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def without_code(load: Callable[..., Any], cls: Any, path: Any, **kwargs: Any) -> Any:
    """The processor of a folder, whose code is left alone."""
    return load(cls, path, **distrusting(kwargs))


def distrusting(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, without leave to run code."""
    return {**arguments, "trust_remote_code": False}


PATCH = Patch(
    id="phi4-siglip-code",
    summary="loading Phi-4 SigLIP runs code from the model's folder",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.phi4_siglip.processing_phi4_siglip",
            "Phi4SigLipProcessor.from_pretrained",
            around(without_code),
        ),
    ),
    probe="mlx_patches.probes.phi4_siglip_code:probe",
    module=__name__,
)
