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
from .tokenizers import PAIRS, SPECIAL, write
from .whole import with_vision_tower

# By distribution; the token ids are those of ``vocabulary(PAIRS)``.
CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "served.json").read_text())
# The text models are the same.
_TEXT = CONFIGS["mlx-lm"] | {"rope_scaling": CONFIGS["mlx-vlm"]["rope_scaling"]}
CONFIGS["mlx-vlm"] = _TEXT | CONFIGS["mlx-vlm"]
CONFIGS["mlx-vlm"]["text_config"] = _TEXT | CONFIGS["mlx-vlm"]["text_config"]
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
    plain = mx.arange(config["vocab_size"]) >= len(SPECIAL)
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
