"""A release's server around a tiny model, in a separate process, queried over loopback."""

import contextlib
import functools
import importlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.arrays import mx
from ..core.errors import MlxPatchesError
from ..core.packages import package_of
from ..evidence.results import BrokenEnvironment, NotApplicable, is_absent
from .build import draw_weights
from .server.client import CHAT, Client, Request
from .server.process import run
from .tokenizers import END, EOS, IMAGE, PAIRS, SPECIAL, START, VIDEO, vocabulary, write
from .whole import with_vision_tower

_NAMES = vocabulary(PAIRS)
_TEXT = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": len(_NAMES),
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": _NAMES.index(EOS),
}
_VISION_TEXT = {**_TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
CONFIGS: dict[str, dict[str, Any]] = {
    "mlx-lm": {"model_type": "llama", **_TEXT},
    "mlx-vlm": {
        "model_type": "qwen2_5_vl",
        "image_token_id": _NAMES.index(IMAGE),
        "video_token_id": _NAMES.index(VIDEO),
        "vision_start_token_id": _NAMES.index(START),
        "vision_end_token_id": _NAMES.index(END),
        **_VISION_TEXT,
        "text_config": {"model_type": "qwen2_5_vl_text", **_VISION_TEXT},
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": 1,
            "hidden_size": 64,
            "intermediate_size": 64,
            "out_hidden_size": 128,
            "num_heads": 2,
            "fullatt_block_indexes": [0],
        },
    },
}
# Sends a chat message with extra request fields; returns the answer and its last finish reason.
Ask = Callable[..., tuple[str, str]]


def save(distribution: str, folder: Path) -> None:
    """Write a tiny model that generates pairs of letters, never a special token."""
    from mlx.utils import tree_flatten

    config = CONFIGS[distribution]
    model = make_model(distribution, config)
    draw_weights(model, seed=0)
    weights = dict(tree_flatten(model.parameters()))
    name = next(name for name in weights if name.endswith("lm_head.weight"))
    plain = mx.arange(len(_NAMES)) >= len(SPECIAL)
    weights[name] = mx.where(plain[:, None], weights[name], 0)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    write(folder, PAIRS)
    for file, content in (
        ("config", config),
        ("preprocessor_config", {"patch_size": 14, "merge_size": 2}),
    ):
        (folder / f"{file}.json").write_text(json.dumps(content))


def make_model(distribution: str, config: dict[str, Any]) -> Any:
    if distribution == "mlx-vlm":
        return with_vision_tower(config)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    return module.Model(module.ModelArgs.from_dict(config))


@contextlib.contextmanager
def serving(distribution: str, patched: bool) -> Iterator[Ask]:
    """Run the release's server until the context ends."""
    command = f"python -P -m {package_of(distribution)}.server --model {{model}}"
    command += " --host 127.0.0.1 --port {port}"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = Path(folder, "model")
        model.mkdir()
        save(distribution, model)
        try:
            started = run(command, {"model": model}, patched, Path(folder, "log"))
            server = stack.enter_context(started)
        except MlxPatchesError as late:
            raise why_not_started(str(late)) from late
        yield functools.partial(request_answer, Client(server.url, server.model))


def why_not_started(text: str) -> Exception:
    if lacking := re.search(r"No module named '([\w.]+)'|(Import|ModuleNotFound)Error: ", text):
        error = ModuleNotFoundError(text, name=lacking[1])
        return NotApplicable(text) if is_absent(error, "") else error
    return (BrokenEnvironment if "did not answer" in text else RuntimeError)(text)


def request_answer(client: Client, text: str, **fields: Any) -> tuple[str, str]:
    """Send a chat message, streamed or not; returns the answer and the finish reason."""
    stream = fields.pop("stream", False)
    answer = client.send(CHAT, Request((text,), fields), stream)
    if answer.status != 200:
        raise RuntimeError(answer.error)
    return answer.text, answer.finish or ""
