"""mlx_vlm.server fails on every image for models whose processor uses MLX, such as InternVL.

Why: A request's thread prepares its images, and the generation thread reads them. InternVL's
    processor returns arrays that are not computed yet. Since MLX 0.32 only the thread that made an
    array can compute it: the request gets "There is no Stream in current thread".
How: The thread that prepares a request computes its arrays.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The server computes a request's arrays in the thread that makes them.
"""

from typing import Any

from ....core.verbs import Patch, mx, result
from ..._shared.targets import vlm_server


def compute_inputs(inputs: Any) -> Any:
    """A request's prepared inputs, computed."""
    mx.eval(inputs)  # skips what is not an array
    return inputs


PATCH = Patch(
    id="vlm-lazy-inputs",
    severity="crash",
    targets=result(
        vlm_server("generation", "ResponseGenerator._cpu_preprocess"),
        compute_inputs,
        fingerprint_of=("ResponseGenerator._cpu_preprocess", "ResponseGenerator.generate"),
    ),
)
