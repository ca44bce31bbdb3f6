"""mlx-vlm: the prefix cache crashes for language models without a config attribute.

Why: The ids of media tokens are read from the ``config`` of the language model. Those of Phi-4
    multimodal, InternVL and LocateAnything have none: with ``APC_ENABLED=1``, every request fails.
How: For a model without a config, they are read from an empty one. A prefix with media still
    matches only the same media, by their hash.
Upstream: Fixed in mlx-vlm 0.6.9, in the same way.
Retire when: No supported release is older than mlx-vlm 0.6.9.
"""

from types import SimpleNamespace
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.targets import vlm_generators

# The first reads the config up to mlx-vlm 0.6.2, the second in later releases.
READERS = ("BatchGenerator._apc_pick_for", "BatchGenerator._apc_media_token_ids")


def read_empty_config(read: Function, generator: Any, *args: Any) -> Any:
    """Call a reader of the config of the generator's model, with an empty one if it has none."""
    model = generator.model
    generator.model = SimpleNamespace(config=None)
    try:
        return read(generator, *args)
    finally:
        generator.model = model


def lacks_config(generator: Any, /) -> bool:
    return not hasattr(generator.model, "config")


PATCH = Patch(
    id="vlm-prefix-no-config",
    formerly="prefix-no-config",
    severity="crash",
    targets=wrap(
        [place for name in READERS for place in vlm_generators(name)],
        read_empty_config,
        fingerprint_of=READERS,
        when=lacks_config,
    ),
)
