"""Writes the scripted model as an ordinary model folder, with the standard library only.

``folder.json`` has its configs and the shapes of its weights, ``template.jinja`` the chat template,
in which only a prompt that makes the model think depends on the switch: servers' defaults differ.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from pathlib import Path
from typing import Any

from ..tokenizers import LETTERS, spell_bytes
from .oracle import (
    FIRST_BYTE,
    HEAD,
    MARKERS,
    PREAMBLE,
    SIZE,
    SPECIAL,
    TOKENS,
    VOCABULARY,
    WIDTH,
    WRITTEN,
    Language,
)
from .pictures import NORM, TOWER, WORDS

# A tensor's shape and its numbers.
Tensors = dict[str, tuple[tuple[int, ...], "array[float]"]]
HERE = Path(__file__).parent
# Servers choose the parser of tool calls by what they find in the template.
HERMES, MISTRAL = "<tool_call>{{ tool_call.name }}</tool_call>", "[TOOL_CALLS]"


def save(folder: Path, language: Language, images: bool = False) -> None:
    """Write the folder; with ``images`` as a vision model of the Qwen2-VL family."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = json.loads((HERE / "folder.json").read_text())
    vision, shapes = files.pop("vision"), files.pop("shapes")
    weights = _zeros(shapes)
    _fill(weights, language)
    if images:  # the text model of a tiny Qwen2.5-VL, whose text positions are RoPE's
        text = files["config"] | vision["text"]
        files["config"] = text | vision["whole"] | {"text_config": text}
        weights = {f"language_model.{name}": one for name, one in weights.items()}
        weights |= _zeros(vision["shapes"])
        _fill_tower(weights, language)
    for name, (_, one) in weights.items():
        if "norm" in name or "ln_q" in name:
            one[:] = array("f", [1.0]) * len(one)
    write_tensors(folder / "model.safetensors", weights)
    lines = (HERE / "template.jinja").read_text().splitlines()
    template = "".join(lines).replace("PREAMBLE", PREAMBLE)
    template = template.replace("TOOL_CALL", MISTRAL if language.other else HERMES, 1)
    files["tokenizer_config"]["chat_template"] = template
    _add_words(files["tokenizer"])
    if images:
        files["chat_template"] = {"chat_template": template}
    else:
        del files["preprocessor_config"]
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))


def save_adapter(folder: Path, prefix: str = "") -> None:
    """Write a LoRA adapter that negates the values, so that a cache is of no use without it.

    ``prefix``: of its tensors' names.
    """
    folder.mkdir()
    layer = f"{prefix}model.layers.0.self_attn.v_proj"
    weights = _zeros({f"{layer}.lora_a": [SIZE, HEAD], f"{layer}.lora_b": [HEAD, HEAD]})
    for i in range(HEAD):
        weights[f"{layer}.lora_a"][1][(VOCABULARY + i) * HEAD + i] = 1.0
        weights[f"{layer}.lora_b"][1][i * HEAD + i] = -2.0
    write_tensors(folder / "adapters.safetensors", weights)
    lora = {"rank": HEAD, "scale": 1.0, "dropout": 0.0}
    config = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": lora}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _zeros(shapes: dict[str, list[int]]) -> Tensors:
    return {
        name: (tuple(shape), array("f", bytes(4 * math.prod(shape))))
        for name, shape in shapes.items()
    }


def _fill(weights: Tensors, language: Language) -> None:
    """Set the weights: one-hot embeddings, one head, and the table in the output matrix."""
    layer = "model.layers.0"
    names = ["model.embed_tokens", "lm_head", *(f"{layer}.self_attn.{one}_proj" for one in "qkvo")]
    embedding, head, queries, keys, values, output = (weights[f"{n}.weight"][1] for n in names)
    embedding[:] = array("f", (x for token in range(VOCABULARY) for x in _embed(token, language)))
    for last, row in enumerate(language.table):
        scale = embedding[last * SIZE + last]
        for token, logit in enumerate(row):
            head[token * SIZE + last] = logit / scale
    for token, vector in language.heads.items():
        for place, value in enumerate(vector):
            head[token * SIZE + VOCABULARY + place] = value
    for i in range(WIDTH):
        # RoPE turns the first half of a head's dimensions by those of the second.
        at = i if i < WIDTH // 2 else HEAD // 2 + i - WIDTH // 2
        for j in range(WIDTH):
            queries[at * SIZE + VOCABULARY + j] = language.query[i][j]
            keys[at * SIZE + VOCABULARY + j] = language.key[i][j]
    for i in range(HEAD):
        values[i * SIZE + VOCABULARY + i] = 1.0
        output[(VOCABULARY + i) * SIZE + i] = WRITTEN


def _fill_tower(weights: Tensors, language: Language) -> None:
    """Set the vision tower's weights: each colour's sum becomes the embedding of its word."""
    patches, merger, output = (
        weights[f"vision_tower.{name}.weight"][1]
        for name in ("patch_embed.proj", "merger.mlp.0", "merger.mlp.2")
    )
    # The numbers of a patch; those of the four patches that are merged.
    size, inner = len(patches) // TOWER, 4 * TOWER
    for colour, word in enumerate(WORDS):
        patches[colour * size + colour : (colour + 1) * size : 3] = array("f", [1.0]) * (size // 3)
        merger[colour * inner + colour] = 1.0
        for place, value in enumerate(_embed(language.ids[word], language)):
            output[place * inner + colour] = value / NORM


def _embed(token: int, language: Language) -> list[float]:
    """A token's embedding, whose norm is that of ones, so that RMSNorm changes nothing."""
    vector = language.vectors.get(token, [])
    embedding = [0.0] * VOCABULARY + vector + [0.0] * (SIZE - VOCABULARY - len(vector))
    embedding[token] = math.sqrt(SIZE - sum(one * one for one in vector))
    return embedding


def write_tensors(file: Path, tensors: Tensors) -> None:
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


def _add_words(tokenizer: dict[str, Any]) -> None:
    """Add the tokens to a byte-level tokenizer: every word is one, whatever the merges."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] = [
        {"id": number, "content": token, "special": token in SPECIAL, **flags}
        for number, token in enumerate(TOKENS)
        if token in (*SPECIAL, *MARKERS)
    ]
    # transformers moves added tokens to the end unless the vocabulary has them as well.
    vocabulary = {token: number for number, token in enumerate(TOKENS[:FIRST_BYTE])}
    vocabulary |= {LETTERS[byte]: FIRST_BYTE + byte for byte in range(256)}
    for number, token in enumerate(TOKENS[FIRST_BYTE + 256 :], FIRST_BYTE + 256):
        vocabulary[spell_bytes(token)] = number
    tokenizer["model"]["vocab"] = vocabulary
