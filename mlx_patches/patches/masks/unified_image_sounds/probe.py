"""Makes the mask of a prompt with an image and a sound, and checks that it is fed in one chunk."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_module,
    mx,
    own_class_of,
    require_own,
    require_parameter,
)

# An image, a sound and text.
TYPES = (1, 1, 3, 0)


def probe(target: Target) -> Result:
    """Red if an image's first token does not see its last one, or if the prompt may be cut."""
    function = require_own(target)
    kind, types = own_class_of(target), mx.array([TYPES])
    if target.name.endswith("_make_masks"):
        require_parameter(function, "mm_token_type_ids")
        mask = make_mask(kind, types)  # of a causal one only the name
        sees = not isinstance(mask, str) and bool(mask.reshape(mask.shape[-2:])[0, 1].item())
        return Result(not sees, f"an image's first token sees its last one: {sees}")
    model = SimpleNamespace(_base_no_chunked_prefill=True)
    whole = kind._should_disable_chunked_prefill(model, types, mm_token_type_ids=types)
    return Result(not whole, f"a prompt with an image and a sound is fed whole: {whole}")


def make_mask(kind: Any, types: Any) -> Any:
    """The mask of a layer with full attention."""
    model = make_module(
        kind,
        config=SimpleNamespace(use_bidirectional_attention="vision"),
        layers=[SimpleNamespace(layer_type="full_attention")],
        window_size=len(TYPES),
    )
    hidden = mx.zeros((1, len(TYPES), 1))
    return model._make_masks(hidden, [None], types)[0]
