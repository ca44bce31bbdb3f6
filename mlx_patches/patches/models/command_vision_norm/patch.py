"""Command A Vision in mlx-vlm reads images wrongly: their features are not normalized.

Why: mlx-vlm runs ``cohere2_vision`` with the code of Aya Vision, whose projector gets the last
    hidden states of the tower. Command A Vision's gets them after the tower's last norm.
How: The embedding step sees a tower whose last hidden states are normalized.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The projector of ``cohere2_vision`` gets the tower's normalized output.
"""

import copy
from typing import Any

from ....core.verbs import Patch, argument

TYPE = "cohere2_vision"


def view_normed(model: Any, /) -> Any:
    """The model, with a tower whose hidden states are its normalized output."""
    view = copy.copy(model)  # the model itself keeps nothing of a request
    view.vision_tower = lambda *args, **kwargs: [model.vision_tower(*args, **kwargs)[:1]]
    return view


def is_command(model: Any, /) -> bool:
    return bool(model.config.model_type == TYPE)


PATCH = Patch(
    id="command-vision-norm",
    every_model=True,
    wrong_solo=TYPE,
    targets=argument(
        "mlx_vlm.models.aya_vision.aya_vision:Model.get_input_embeddings",
        "self",
        view_normed,
        when=is_command,
    ),
)
