"""Writes the files of a published folder around a tiny model: tokenizer, processor and configs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..reference import merge, old_rope

Json = dict[str, Any]
TABLE: Json = tomllib.loads((Path(__file__).parent / "families.toml").read_text())
STOP = "eos_token_id"
PLAIN = ("<pad>", "<bos>", "<eos>")
QUESTION = "What is in it? Read 3 words."
_DROPS = {"no-preprocessor": "preprocessor", "no-processor": "processor", "no-config": "config"}
# The class that published folders have for their config.
CONFIG_CODE = """from transformers import PretrainedConfig


class {name}(PretrainedConfig):
    model_type = "{type}"

    def __init__(self, **fields):
        for name in [name for name in fields if "rope" in name or "position" in name]:
            setattr(self, name, fields.pop(name))
        super().__init__(**fields)
"""
# The user's turn in the format that transformers' processors take: a list of typed parts.
TEMPLATE = (
    "{{ start }}{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ image }}"
    "{% elif part['type'] == 'audio' %}{{ audio }}"
    "{% else %}{{ part['text'] if 'text' in part else part['content'] }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def entries(family: str) -> list[str]:
    """The names of a family's entries in the table, its plain one first."""
    return [name for name in TABLE["entry"] if entry(name)["family"] == family]


@cache
def entry(name: str) -> Json:
    """An entry of the table, complete: the one it is like, and its own fields."""
    own = TABLE["entry"][name]
    like = own.get("like")
    made: Json = json.loads(json.dumps(entry(like))) if like else {}
    for part in ("when", "family", "type", "null-text"):
        made.pop(part, None)
    for drop, part in _DROPS.items():
        for field in own.get(drop, ()):
            made.get(part, {}).pop(field, None)
    if "model_type" in own.get("text", {}) and like:
        made["text"] = {}
    for field in own.get("no-vision", ()):
        made["vision"].pop(field, None)
    merge(made, json.loads(json.dumps(own).replace('"null"', "null")))
    made.setdefault("family", name.split()[0])
    made.setdefault("type", made["family"])
    return made


def is_respelled(one: Json, other: Json) -> bool:
    """Whether two configs differ in more than the tokens that end a text."""
    return {**one, STOP: None} != {**other, STOP: None}


def prompt(one: Json, images: int, sounds: int = 0) -> str:
    """A prompt with this number of images and sounds, then the question."""
    end = "" if one.get("joined") else "\n"
    shown = "".join(one["image"].replace("{}", f"{at + 1}") + end for at in range(images))
    for at in range(sounds):
        shown += one["audio"]["token"].replace("{}", f"{at + 1}") + "\n"
    return f"{'<bos>' if one.get('bos') else ''}{shown}{one.get('ask', QUESTION)}"


def write_tokenizer(one: Json, folder: Path) -> tuple[dict[str, int], int]:
    """Save a tokenizer of 256 bytes and special tokens; returns their ids, and the vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = one.get("plain", PLAIN)
    special = [*plain, *one["tokens"]]
    if grid := one.get("grid"):
        numbers = range(1, grid[1] + 1)
        special += [grid[0].format(row, column) for row in numbers for column in numbers]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id_ for id_, token in enumerate([*plain, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    names = dict(zip(("pad_token", "bos_token", "eos_token"), PLAIN, strict=True))
    if "names" in one:
        names["extra_special_tokens"] = one["names"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=100000, **names)
    start = "<bos>" if one.get("bos") else ""
    words = {"start": start, "image": one["image"], "audio": (one.get("audio") or {}).get("token")}
    fast.chat_template = TEMPLATE
    for name, word in words.items():
        word = (word or "").replace("{}", "{{ loop.index }}")
        fast.chat_template = fast.chat_template.replace(f"{{{{ {name} }}}}", word)
    fast.save_pretrained(folder)
    return {token: fast.convert_tokens_to_ids(token) for token in special}, len(fast)


def write_processor(one: Json, folder: Path) -> None:
    """Save preprocessor_config.json and processor_config.json."""
    mean, std = TABLE["norm"][one["norm"]]
    steps = {} if one.get("bare-steps") else TABLE["steps"]
    images = {**steps, "image_mean": mean, "image_std": std, **one["preprocessor"]}
    files = {"preprocessor_config.json": images, "processor_config.json": one.get("processor")}
    if one.get("within-processor"):
        files = {"processor_config.json": {**one["processor"], "image_processor": images}}
    for name, data in files.items():
        if data is not None:
            (folder / name).write_text(json.dumps(data, indent=1))


def config(one: Json, ids: Mapping[str, int], size: int) -> Any:
    from transformers import CONFIG_MAPPING

    text = {**TABLE["text"], **one["text"]} | dict.fromkeys(one.get("null-text", ()))
    text |= dict.fromkeys(one.get("vocabulary", ["vocab_size"]), size - one.get("beyond", 0))
    for field in one.get("without", ()):
        text.pop(field)
    vision = one.get("own-vision") or {**TABLE["vision"], **one["vision"]}
    outer = {k: ids.get(v, v) if isinstance(v, str) else v for k, v in one["config"].items()}
    outer |= dict.fromkeys(one.get("no-parts", ()))
    whole = text if one.get("one-config") else {"text_config": text}
    return CONFIG_MAPPING[one["type"]](**{**whole, "vision_config": vision, **outer})


def respell(one: Json, saved: Json) -> Json:
    """A config as transformers saves it, in the spelling of published folders."""
    found: Json = json.loads(json.dumps(saved))
    if one.get("old", True):
        found = old_rope(found)
        if isinstance(vision := found.get("vision_config"), dict):
            found["vision_config"] = old_rope(vision)
        if one.get("flat"):
            text = found.pop("text_config")
            text.pop("model_type", None)
            text.pop("layer_types", None)
            found = {**text, **found}
    for part in ("text", "vision"):
        own = found.get(f"{part}_config", found)
        merge(own, one.get(f"published-{part}", {}))
        for field in one.get(f"unpublished-{part}", ()):
            own.pop(field, None)
    for field in one.get("unpublished-rope", ()):
        found["rope_scaling"].pop(field)
    for new, old in one.get("old-parts", {}).items():
        found[old] = found.pop(new)
    found = enclose(one, found)
    merge(found, one.get("published", {}))
    return found


def write_code(one: Json, folder: Path) -> None:
    """Save the code of the config's class if published folders have it."""
    if code := one.get("published", {}).get("auto_map", {}).get("AutoConfig"):
        module, name = code.split(".")
        text = CONFIG_CODE.format(name=name, type=one["published"]["model_type"])
        (folder / f"{module}.py").write_text(text)


def enclose(one: Json, config: Json) -> Json:
    """The config of the whole model if transformers makes only a part of it."""
    part, _ = one.get("within", ("", ""))
    whole = {"model_type": one["family"], **one.get("beside", {}), part: config}
    return whole if part else config
