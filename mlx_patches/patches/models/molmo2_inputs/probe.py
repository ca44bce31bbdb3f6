"""Prepares a prompt for a Molmo 2 processor, and resizes an image of stripes."""

from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, require_own

_SIZE = 24


class Tokenizer:
    """A tokenizer that turns each character into a token."""

    bos_token, eos_token, pad_token = None, "$", "."

    def __call__(self, prompts: Any, **options: Any) -> Any:
        ids = mx.array([[ord(one) for one in prompt] for prompt in prompts])
        return type("Inputs", (), {"input_ids": ids, "attention_mask": mx.ones_like(ids)})


def probe(target: Target) -> Result:
    """Red if the token is missing, or if the stripes are averaged."""
    call = require_own(target)
    if target.name == "prepare_inputs":
        processor = type("Molmo2Processor", (), {"tokenizer": Tokenizer()})()
        ids = call(processor, prompts=["text"])["input_ids"].reshape(-1).tolist()
        return Result(ids[0] != ord("$"), f"the first token is {chr(ids[0])!r}")
    np: Any = import_module("numpy")
    image = np.zeros((_SIZE, _SIZE, 3), dtype=np.uint8)
    image[:, ::2] = 255
    resample = module_of(target).PILImageResampling.BILINEAR
    made = call(image, [_SIZE // 3, _SIZE // 3], resample)
    off = float(abs(made - image[1::3, 1::3] / 255).max())
    return Result(off > 1e-2, f"a pixel is off by {off:.2g}", off)
