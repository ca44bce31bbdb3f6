"""Processes an image with the options that the release passes, through LLaVA's processor."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import cache_of

# A published folder's, for tiny images of four patches.
SETTINGS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
}
PATCHES = 4
OPTIONS = {"padding": True, "padding_side": "left", "add_special_tokens": False}


class Tokenizer:
    """A tokenizer that counts image tokens, and records its options."""

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        """The number of image tokens of each text."""
        self.options = options
        return {"input_ids": [[text.count("<image>")] for text in texts]}


def probe(target: Target) -> Result:
    """Red if the processor raises, expands an image wrongly, or drops the tokenizer's options."""
    processor_class = cache_of(target)
    image_class = importlib.import_module("PIL.Image")
    processor = object.__new__(processor_class)
    tokenizer = Tokenizer()
    vars(processor).update(
        image_processor=load_image_processor(),
        tokenizer=tokenizer,
        image_token="<image>",
        patch_size=14,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )
    image = image_class.new("RGB", (28, 28), (200, 30, 30))
    try:
        processed = processor(images=[image], text=["<image> a"], **OPTIONS)
    except Exception as error:
        return Result(True, f"{type(error).__name__}: {error}")
    count = processed["input_ids"].tolist()[0][0]
    kept = OPTIONS.items() <= tokenizer.options.items()
    return Result(count != PATCHES or not kept, f"{count} tokens for {PATCHES} patches")


def load_image_processor() -> Any:
    """The image processor that a published folder has.

    Raises:
        NotApplicable: the installed transformers has none without torch.
    """
    kind = importlib.import_module("transformers").AutoImageProcessor
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "preprocessor_config.json").write_text(json.dumps(SETTINGS))
        try:
            return kind.from_pretrained(folder)
        except ImportError as error:
            raise NotApplicable(str(error).strip().partition("\n")[0]) from error
