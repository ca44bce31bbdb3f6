"""Processes an image with the options that the release passes, through LLaVA's processor."""

from typing import Any

from ....probes.kit import Result, Target, import_module, own_class_of

# An image of four patches.
SIZE, PATCHES = (28, 28), 4
OPTIONS = {"padding": True, "padding_side": "left", "add_special_tokens": False}


class ImageProcessor:
    """An image processor that refuses options of tokenizers, as since transformers 5."""

    def __call__(self, images: list[Any], **options: Any) -> dict[str, Any]:
        """The pixels (images, channels, height, width) of images."""
        known = import_module("transformers.processing_utils").ImagesKwargs
        if foreign := options.keys() - known.__annotations__.keys():
            raise TypeError(f"unexpected options {sorted(foreign)}")
        numpy = import_module("numpy")
        return {"pixel_values": numpy.zeros((len(images), 3, *SIZE), numpy.float32)}


class Tokenizer:
    """A tokenizer that counts image tokens, and records its options."""

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        self.options = options
        return {"input_ids": [[text.count("<image>")] for text in texts]}


def probe(target: Target) -> Result:
    """Red if the processor raises, expands an image wrongly, or drops the tokenizer's options."""
    processor_class = own_class_of(target)
    processor = object.__new__(processor_class)
    tokenizer = Tokenizer()
    vars(processor).update(
        image_processor=ImageProcessor(),
        tokenizer=tokenizer,
        image_token="<image>",
        patch_size=14,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )
    try:
        processed = processor(images=[object()], text=["<image> a"], **OPTIONS)
    except Exception as error:
        return Result(True, f"{type(error).__name__}: {error}")
    count = processed["input_ids"].tolist()[0][0]
    kept = OPTIONS.items() <= tokenizer.options.items()
    return Result(count != PATCHES or not kept, f"{count} tokens for {PATCHES} patches")
