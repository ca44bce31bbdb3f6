"""A release's server around a tiny model, in a separate process, queried over loopback."""

import contextlib
import importlib
import json
import random
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..activation.children import child_environment, module_command
from ..core.arrays import mx
from ..core.packages import package_of
from ..evidence.results import NotApplicable
from .build import draw_weights
from .tokenizers import END, EOS, IMAGE, PAIRS, SPECIAL, START, VIDEO, vocabulary, write
from .whole import with_vision_tower

# Seconds within which a server has to start, and to answer.
START_SECONDS, ANSWER_SECONDS = 90, 30
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
    package, port = package_of(distribution), free_port()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        save(distribution, Path(folder))
        words = module_command(f"{package}.server", "--model", folder)
        words += ["--host", "127.0.0.1", "--port", str(port)]
        if patched:
            words = module_command("mlx_patches", "run", "--", *words)
        # A server that lists the models in the hub's cache fails if there is no cache.
        cache = {"HF_HUB_CACHE": folder, "HF_HUB_OFFLINE": "1", "HOME": folder}
        environment = child_environment() | cache
        with subprocess.Popen(words, stdout=log, stderr=log, env=environment) as process:
            try:
                yield ready(process, f"http://127.0.0.1:{port}", folder)
            except TimeoutError as late:
                log.seek(0)
                last = (log.read().strip().splitlines() or [""])[-1]
                raise NotApplicable(f"the server does not start: {last}") from late
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()


def ready(process: subprocess.Popen[Any], url: str, model: str) -> Ask:
    """Wait until a server answers; returns the function that sends it requests."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=5):
            return lambda text, **fields: request_answer(url, model, text, **fields)
        time.sleep(0.2)
    raise TimeoutError


def request_answer(url: str, model: str, text: str, **fields: Any) -> tuple[str, str]:
    """Send a chat message, streamed or not; returns the answer and the finish reason."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    content, reason = "", ""
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        for line in answer.read().decode().splitlines():
            data = line.removeprefix("data:").strip()
            if not data.startswith("{"):
                continue
            for choice in json.loads(data).get("choices", ()):
                part = choice.get("delta") or choice.get("message") or {}
                content += part.get("content") or ""
                reason = choice.get("finish_reason") or reason
    return content, reason


def free_port() -> int:
    """A free port.

    A server binds its port some time after this call, a host minutes later. Meanwhile the system
    assigns ports of its ephemeral range to connections, so the port is below that range (32768 on
    Linux, 49152 on macOS).
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
