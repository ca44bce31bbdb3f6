"""A tiny random-weight model with a tokenizer, as a folder that servers load.

python -m tests.hosts.model FOLDER FAMILY
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

EOS = "<eos>"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " "
# The lab gives Llama sliding windows; servers meet it without.
CONFIGS = {
    "llama": {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": 96,
        "tie_word_embeddings": False,
    }
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def save(folder: Path, family: str) -> None:
    """Write a family's model of mlx-lm: config, weights, tokenizer."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlx_patches.lab import Family
    from mlx_patches.lab.build import build

    folder.mkdir(parents=True, exist_ok=True)
    model = build(Family("mlx-lm", family), config=CONFIGS.get(family))
    weights = dict(tree_flatten(model.module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    write(folder / "config.json", {**model.config, "eos_token_id": 0})
    save_tokenizer(folder)


def save_tokenizer(folder: Path) -> None:
    """One token a character; the end of a turn is token 0."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {EOS: 0} | {c: i for i, c in enumerate(CHARACTERS, start=1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=EOS))
    tokenizer.add_special_tokens([EOS])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": EOS,
            "pad_token": EOS,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
