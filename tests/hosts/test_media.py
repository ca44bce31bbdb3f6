"""With the profile ``security`` a host answers embedded images and opens no path or URL.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from mlx_patches.patches.server.media.probe import a_server

from .server import image, serving
from .test_hosts import ROOT, SET

pytestmark = pytest.mark.slow

HOSTS = {
    "vllm-mlx 0.6.0": {
        "family": "qwen2_5_vl",
        "command": "vllm-mlx serve {model} --mllm --continuous-batching --offline --port {port}",
    },
    # Its Qwen 2.5 VL needs torchvision, and its batches of images a newer mlx-vlm than it installs.
    "mlx-openai-server 1.8.1": {
        "family": "gemma4",
        "command": "mlx-openai-server launch --model-path {model} --model-type multimodal"
        " --host 127.0.0.1 --port {port} --no-log-file --disable-batching",
    },
}
if SET not in HOSTS:
    pytest.skip("this host is tried without media", allow_module_level=True)
CASE = HOSTS[SET]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp(CASE["family"])
    command = [sys.executable, "-m", "tests.hosts.model", str(folder), CASE["family"], "mlx-vlm"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"MLX_PATCHES": "0"})
    file = folder / "tokenizer_config.json"
    # Gemma 4's processor needs the image token of its tokenizer.
    tokens = {"extra_special_tokens": {"image_token": "<|image_pad|>"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | tokens))
    return folder


def test_media_of_a_request(model: Path, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "security")
    picture = image(56, 56)
    secret = tmp_path / "secret.png"
    secret.write_bytes(base64.b64decode(picture.partition(",")[2]))

    with a_server() as web, serving(CASE, model, tmp_path / "host.log", patched=True) as host:

        def ask(kind: str, url: str) -> httpx.Response:
            part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
            content = [{"type": "text", "text": "what is it?"}, part]
            body = {"model": str(model), "max_tokens": 4, "temperature": 0}
            messages = [{"role": "user", "content": content}]
            return httpx.post(
                f"{host.url}/v1/chat/completions", json=body | {"messages": messages}, timeout=120
            )

        playlist = f"#EXTM3U\n#EXTINF:8,\n{web.url}/image\n".encode() + bytes(200)
        listed = base64.b64encode(playlist).decode()
        for kind, url in (
            *(("image", str(secret)), ("image", f"{web.url}/image")),
            *(("image", f"data:image/png;base64,{listed}"), ("video", str(secret))),
            *(("video", f"{web.url}/image"), ("video", f"data:video/mp4;base64,{listed}")),
        ):
            response = ask(kind, url)
            assert response.status_code == 400, (kind, url, response.text)
        assert not web.asked
        response = ask("image", picture)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"]
