"""A model's folder with stop tokens in each of its files."""

import json
from pathlib import Path
from typing import Any

TINY = "mlx_patches_tiny"
# The tokenizer's own stop token, then ids that only one place in the files has. Id 0 counts.
OWN = 1
IN_CONFIG = 2
IN_TEXT_CONFIG = 3
IN_GENERATION = (0, 4)


def write_folder(folder: Path, **generation_config: Any) -> None:
    """Write a model's folder: a five-word tokenizer and the configs of a one-weight model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "</s>": OWN, "a": 2, "b": 3, "c": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = {
        "model_type": TINY,
        "eos_token_id": IN_CONFIG,
        "text_config": {"eos_token_id": [IN_TEXT_CONFIG]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    content = generation_config or {"eos_token_id": list(IN_GENERATION)}
    (folder / "generation_config.json").write_text(json.dumps(content))
