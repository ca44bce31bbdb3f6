"""Writes the scripted model as an ordinary model folder, with the standard library only."""

from __future__ import annotations

import json
import math
import struct
from array import array
from pathlib import Path
from typing import Any

from ..tokenizers import LETTERS, spell_bytes
from .oracle import (
    END,
    EOS,
    FIRST_BYTE,
    HEAD,
    IMAGE,
    MARKERS,
    PAD,
    PONDER,
    PREAMBLE,
    SIZE,
    SPECIAL,
    START,
    THETA,
    TOKENS,
    USER,
    VIDEO,
    VOCABULARY,
    WIDTH,
    WRITTEN,
    Language,
)

# The shape and the numbers.
Tensor = tuple[tuple[int, ...], "array[float]"]
MEMORY = 32
LIMIT = 32768
TEMPLATE = (
    # Servers choose the parser of tool calls by what they find in the template.
    "{%% if false %%}%s{%% endif %%}"
    "{{ '" + PREAMBLE + "' }}"
    "{%%- for message in messages -%%}"
    "{%%- if message['role'] == 'assistant' -%%}{{ ' ' }}{%%- else -%%}"
    + USER
    + "{{ ' ' }}{%%- endif -%%}"
    "{%%- if message['content'] is string -%%}{{ message['content'] | trim }}"
    "{%%- elif message['content'] -%%}{%%- for part in message['content'] -%%}"
    "{%%- if part['type'] in ('image', 'image_url') -%%}" + START + IMAGE + END + "{%%- else -%%}"
    "{{ part['text'] | trim }}{%%- endif -%%}{%%- endfor -%%}{%%- endif -%%}"
    "{%%- if message['role'] == 'assistant' -%%}" + EOS + "{%%- endif -%%}"
    "{%%- endfor -%%}"
    # Only a prompt that makes the model think depends on the switch: servers' defaults differ.
    "{%%- set last = messages[-1]['content'] -%%}"
    "{%%- if last is not string -%%}{%%- set last = last[-1]['text'] -%%}{%%- endif -%%}"
    "{%%- if enable_thinking is defined and not enable_thinking and last.endswith('"
    + PONDER
    + "') -%%}"
    "<think></think>{%%- endif -%%}"
)
HERMES, MISTRAL = "<tool_call>{{ tool_call.name }}</tool_call>", "[TOOL_CALLS]"
# A pre-token is a call's JSON, or a word after its space, or one character.
PATTERN = r"\{\"[^{}]*(?:\{[^{}]*\})?\}| ?[A-Za-z]+|\s|."


def save(folder: Path, language: Language, images: bool = False) -> None:
    """Write the folder; with ``images`` as a vision model of the Qwen2-VL family."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = language.ids
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": SIZE,
        "num_hidden_layers": 1,
        "intermediate_size": MEMORY,
        "num_attention_heads": SIZE // HEAD,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LIMIT,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": ids[EOS],
        "pad_token_id": ids[PAD],
    }
    tensors = _tensors(language)
    if images:
        config, tensors = _add_vision(config, tensors, ids)
    _write_tensors(folder / "model.safetensors", tensors)
    template = TEMPLATE % (MISTRAL if language.other else HERMES)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": LIMIT,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    generation = {"eos_token_id": ids[EOS], "pad_token_id": ids[PAD]}
    for name, content in (
        ("config", config),
        ("tokenizer", _tokenizer()),
        ("tokenizer_config", settings),
        ("generation_config", generation),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    if images:
        processor = {
            "patch_size": 14,
            "merge_size": 2,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))


def _tensors(language: Language) -> dict[str, Tensor]:
    """The weights: one-hot embeddings, one head, and the table in the output matrix."""
    embedding = _zeros(VOCABULARY, SIZE)
    head = _zeros(VOCABULARY, SIZE)
    # The norm of an embedding is that of ones, so that RMSNorm changes nothing.
    for token in range(VOCABULARY):
        vector: list[float] = language.vectors.get(token, [])
        embedding[token * SIZE + token] = math.sqrt(SIZE - sum(one * one for one in vector))
        for place, value in enumerate(vector):
            embedding[token * SIZE + VOCABULARY + place] = value
    for last, row in enumerate(language.table):
        scale = embedding[last * SIZE + last]
        for token, logit in enumerate(row):
            head[token * SIZE + last] = logit / scale
    for token, vector in language.heads.items():
        for place, value in enumerate(vector):
            head[token * SIZE + VOCABULARY + place] = value
    queries, keys, values = _zeros(SIZE, SIZE), _zeros(HEAD, SIZE), _zeros(HEAD, SIZE)
    output = _zeros(SIZE, SIZE)
    for i in range(WIDTH):
        # RoPE turns the first half of a head's dimensions by those of the second.
        at = i if i < WIDTH // 2 else HEAD // 2 + i - WIDTH // 2
        for j in range(WIDTH):
            queries[at * SIZE + VOCABULARY + j] = language.query[i][j]
            keys[at * SIZE + VOCABULARY + j] = language.key[i][j]
    for i in range(HEAD):
        values[i * SIZE + VOCABULARY + i] = 1.0
        output[(VOCABULARY + i) * SIZE + i] = WRITTEN
    ones = array("f", [1.0]) * SIZE
    layer = "model.layers.0."
    square = (SIZE, SIZE)
    return {
        "model.embed_tokens.weight": ((VOCABULARY, SIZE), embedding),
        f"{layer}self_attn.q_proj.weight": (square, queries),
        f"{layer}self_attn.k_proj.weight": ((HEAD, SIZE), keys),
        f"{layer}self_attn.v_proj.weight": ((HEAD, SIZE), values),
        f"{layer}self_attn.o_proj.weight": (square, output),
        f"{layer}mlp.gate_proj.weight": ((MEMORY, SIZE), _zeros(MEMORY, SIZE)),
        f"{layer}mlp.up_proj.weight": ((MEMORY, SIZE), _zeros(MEMORY, SIZE)),
        f"{layer}mlp.down_proj.weight": ((SIZE, MEMORY), _zeros(SIZE, MEMORY)),
        f"{layer}input_layernorm.weight": ((SIZE,), ones),
        f"{layer}post_attention_layernorm.weight": ((SIZE,), ones),
        "model.norm.weight": ((SIZE,), ones),
        "lm_head.weight": ((VOCABULARY, SIZE), head),
    }


def _add_vision(
    config: dict[str, Any], tensors: dict[str, Tensor], ids: dict[str, int]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same model as the text model of a tiny Qwen2.5-VL, whose text positions are RoPE's."""
    text = config | {
        "model_type": "qwen2_5_vl_text",
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    }
    places = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
    }
    vision = {
        "model_type": "qwen2_5_vl",
        "depth": 1,
        "hidden_size": MEMORY,
        "intermediate_size": MEMORY,
        "out_hidden_size": SIZE,
        "num_heads": 1,
        "fullatt_block_indexes": [0],
    }
    whole = text | {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        **{name: ids[token] for name, token in places.items()},
        "text_config": text,
        "vision_config": vision,
    }
    found = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    attention = "language_model.model.layers.0.self_attn."
    shapes = {
        **{
            f"{attention}{name}_proj.bias": (n,)
            for name, n in zip("qkv", (SIZE, HEAD, HEAD), strict=True)
        },
        "vision_tower.patch_embed.proj.weight": (MEMORY, 2, 14, 14, 3),
        "vision_tower.merger.ln_q.weight": (MEMORY,),
        "vision_tower.merger.mlp.0.weight": (4 * MEMORY, 4 * MEMORY),
        "vision_tower.merger.mlp.0.bias": (4 * MEMORY,),
        "vision_tower.merger.mlp.2.weight": (SIZE, 4 * MEMORY),
        "vision_tower.merger.mlp.2.bias": (SIZE,),
    }
    block = "vision_tower.blocks.0."
    shapes |= {f"{block}norm{n}.weight": (MEMORY,) for n in (1, 2)}
    shapes |= {
        f"{block}attn.qkv.weight": (3 * MEMORY, MEMORY),
        f"{block}attn.qkv.bias": (3 * MEMORY,),
    }
    for name in ("attn.proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        shapes |= {f"{block}{name}.weight": (MEMORY, MEMORY), f"{block}{name}.bias": (MEMORY,)}
    found |= {name: (shape, _zeros(*shape)) for name, shape in shapes.items()}
    return whole, found


def _zeros(*shape: int) -> array[float]:
    return array("f", bytes(4 * math.prod(shape)))


def _write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file: the header's length, the header, the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (shape, values) in tensors.items():
        begin, end = end, end + 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for _, values in tensors.values():
            out.write(values.tobytes())


def _tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer in which every word is a token, whatever the merges."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": token, "special": token in SPECIAL, **flags}
        for number, token in enumerate(TOKENS)
        if token in (*SPECIAL, *MARKERS)
    ]
    # transformers moves added tokens to the end unless the vocabulary has them as well.
    vocabulary = {token: number for number, token in enumerate(TOKENS[:FIRST_BYTE])}
    vocabulary |= {LETTERS[byte]: FIRST_BYTE + byte for byte in range(256)}
    for number, token in enumerate(TOKENS[FIRST_BYTE + 256 :], FIRST_BYTE + 256):
        vocabulary[spell_bytes(token)] = number
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": [],
        },
    }
