"""The test prompts, and their images: gradients, edges and noise, of several shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """The images of one prompt: width, height and mode of each; and the samples of its sounds.

    ``runs``: the model runs on it too; if not, only the processors are compared.
    """

    images: tuple[tuple[int, int, str], ...]
    runs: bool = False
    sounds: tuple[int, ...] = ()


CASES = {
    "square": Case(((224, 224, "RGB"),), runs=True),
    "wide": Case(((640, 200, "RGB"),), runs=True),
    "tall": Case(((150, 500, "RGB"),)),
    "two": Case(((224, 224, "RGB"), (300, 180, "RGB")), runs=True),
    "three": Case(((180, 180, "RGB"), (300, 180, "RGB"), (224, 224, "RGB"))),
    "odd": Case(((333, 251, "RGB"),)),
    "tiny": Case(((20, 14, "RGB"),)),
    "strip": Case(((900, 30, "RGB"),)),
    "large": Case(((1600, 1203, "RGB"),)),
    "rgba": Case(((300, 260, "RGBA"),)),
    "gray": Case(((320, 240, "L"),)),
    "palette": Case(((320, 240, "P"),)),
    "text": Case((), runs=True),
}


# Compared only with models that have an audio part. A fourth of all lengths ends with an incomplete
# frame; whole seconds fill the chunks of Qwen3-Omni.
SOUNDS = {
    "sound": Case((), runs=True, sounds=(7600,)),
    "odd sound": Case((), runs=True, sounds=(7137,)),
    "seconds": Case((), runs=True, sounds=(32000,)),
    "long sound": Case((), runs=True, sounds=(144963,)),
    "sounds": Case((), runs=True, sounds=(3121, 7600)),
    "sound and image": Case(((224, 224, "RGB"),), runs=True, sounds=(7031,)),
}


def find(case: str) -> Case:
    return CASES.get(case) or SOUNDS[case]


def save(folder: Path, case: str, seed: int = 0) -> list[str]:
    """Write the images of a case once; returns their paths."""
    paths = []
    for place, (width, height, mode) in enumerate(find(case).images):
        path = folder / f"{case}-{place}-{seed}.png"
        if not path.exists():
            draw(width, height, mode, 17 * place + len(case) + 100 * seed).save(path)
        paths.append(str(path))
    return paths


def draw(width: int, height: int, mode: str, seed: int) -> Any:
    import numpy as np
    from PIL import Image, ImageDraw

    y, x = np.mgrid[0:height, 0:width]
    waves = 127 + 120 * np.sin(x / 7 + y / 11)
    values = np.stack([255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), waves], -1)
    noise = np.random.default_rng(seed).normal(0, 12, values.shape)
    image = Image.fromarray(np.clip(values + noise, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    pen.rectangle([width // 5, height // 5, width // 2, height // 2], fill=(240, 20, 20))
    pen.line([0, 0, width, height], fill=(0, 0, 0), width=max(1, min(width, height) // 30))
    if mode == "RGBA":
        image.putalpha(Image.fromarray(((x * 3 + y * 5) % 256).astype(np.uint8)))
        return image
    return image if mode == "RGB" else image.convert(mode)
