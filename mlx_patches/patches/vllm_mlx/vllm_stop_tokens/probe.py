"""Compares the stop tokens of vllm-mlx's multimodal scheduler with the model's folder."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from ....probes.kit import Result, Target, module_of
from ....probes.stop_folder import IN_CONFIG, IN_GENERATION, IN_TEXT_CONFIG, OWN, write_folder

_WANTED = {OWN, IN_CONFIG, IN_TEXT_CONFIG, *IN_GENERATION}


def probe(target: Target) -> Result:
    """Red if a stop token that the folder or the tokenizer names is not used."""
    from transformers import PreTrainedTokenizerFast

    scheduler = module_of(target).MLLMScheduler
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        processor = SimpleNamespace(tokenizer=tokenizer)
        seen = scheduler._get_stop_tokens(SimpleNamespace(processor=processor))
    missing = sorted(_WANTED - set(seen))
    if missing:
        return Result(True, f"stop tokens {missing} are dropped")
    return Result(False, f"stop tokens {sorted(_WANTED)} are all used")
