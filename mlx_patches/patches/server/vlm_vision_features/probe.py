"""Embeds an image whose file or URL has different content the second time; replaces an image."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    import_module,
    module_of,
    mx,
    own_class_of,
    require_module,
    require_names,
)
from ....probes.stream_generate import capture_options


def probe(target: Target) -> Result:
    """Red if the second picture gets the features of the first."""
    module = module_of(target)
    owner = target.name.partition(".")[0]
    own_class_of(target)
    kept = require_module("mlx_vlm.vision_cache").VisionFeatureCache()
    if owner == "stream_generate":
        return probe_stream(module, kept)
    return probe_server(getattr(module, owner), kept)


def probe_server(kind: Any, kept: Any) -> Result:
    """Embed two pictures under one URL with the server, the second one twice."""
    require_names(kind, "_gpu_embed")
    encoded = []

    def embeddings(
        ids: Any, pixels: Any, vision_cache: Any = None, _image_key: Any = None, **_: Any
    ) -> Any:
        features = vision_cache.get(_image_key)
        if features is None:
            encoded.append(features := pixels + 0)
            vision_cache.put(_image_key, features)
        return SimpleNamespace(to_dict=lambda: {"features": features})

    server = kind.__new__(kind)
    server.vision_cache = kept
    server.model = SimpleNamespace(get_input_embeddings=embeddings)
    for shown in (1.0, 2.0, 2.0):
        inputs = {"input_ids": mx.array([[1, 2]]), "pixel_values": mx.full((1, 3), shown)}
        _, given = server._gpu_embed(inputs, ["http://camera/now.jpg"])
        if given["features"].tolist() != [[shown] * 3]:
            return Result(True, f"picture {shown:g} has features {given['features'].tolist()}")
    return Result(len(encoded) != 2, f"two pictures were encoded {len(encoded)} times")


def probe_stream(module: Any, kept: Any) -> Result:
    """Stream with a file, then a URL, whose picture changes between two requests."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "now.jpg")
        for image in (str(file), "http://camera/now.jpg"):
            for shown in (1.0, 2.0):
                file.write_text("." * int(shown))
                pixels = mx.full((1, 3), shown)
                given = capture_options(
                    module,
                    image=image,
                    input_ids=mx.array([[1, 2]]),
                    pixel_values=pixels,
                    vision_cache=kept,
                ).get("cached_image_features")
                features = None if given is None else given.tolist()
                if features != pixels.tolist():
                    return Result(True, f"picture {shown:g} has features {features}")
        return probe_turns(module, str(file), f"{file}.png")


def probe_turns(module: Any, first: str, second: str) -> Result:
    """Stream three turns of a conversation; the last one has another image than the others."""
    kind = getattr(import_module("mlx_vlm.generate"), "PromptCacheState", None)
    if kind is None:
        return Result(False, "a changed picture has its own features")
    turn, caches = kind(), [import_module("mlx_vlm.models.cache").KVCache()]
    kept = []
    for image in (first, first, second):
        given = capture_options(
            module,
            image=image,
            input_ids=mx.array([[1, 2, 3]]),
            pixel_values=mx.ones((1, 3)),
            prompt_cache_state=turn,
        ).get("prompt_cache")
        kept.append(given is caches)
        turn.update([1, 2], caches)
    if kept != [False, True, False]:
        return Result(True, f"turns with an image, the same and another keep the caches: {kept}")
    return Result(False, "a changed picture has its own features and caches")
