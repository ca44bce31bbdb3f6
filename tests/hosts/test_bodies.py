"""Bodies of requests that reach past a server's checks, on a real server of vllm-mlx.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import json

import httpx
import pytest

from mlx_patches.patches.server.media.probe import a_server

from . import doors
from .test_hosts import SET

# In 0.6.0 llguidance's grammar of the schema already ends the request.
FETCHES = "vllm-mlx 0.4.1"
if SET not in (FETCHES, "vllm-mlx 0.6.0"):
    pytest.skip("this host is attacked by test_doors.py", allow_module_level=True)
OFFLINE = "" if SET == FETCHES else " --offline"
SERVER = doors.Server(
    SET,
    SET,
    f"vllm-mlx serve {{model}} --continuous-batching{OFFLINE} --host 127.0.0.1 --port {{port}}",
)
# {"a": 1} is valid; a keyword that no grammar has refers to the address.
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PROMPT = [{"role": "user", "content": 'the quick {"a": 1}'}]
FORMAT = "json_schema"


@pytest.fixture(params=[False, True], ids=["released", "patched"])
def server(request, tmp_path):
    folder = tmp_path / "model"
    doors.save_model(folder, "llama", "mlx-lm")
    # vllm-mlx constrains JSON only for tokenizers with a known decoder.
    doors.edit(folder / "tokenizer.json", decoder=BYTES)
    with doors.running(SERVER, folder, tmp_path / "log", request.param) as host:
        yield host, request.param
        assert doors.plain_answer(host).status_code == 200


def test_bodies(server):
    host, patched = server
    plain = {"model": host.model, "max_tokens": 40, "temperature": 0, "messages": PROMPT}
    # vllm-mlx has separate code for bodies with invalid escapes.
    kwargs = {"chat_template_kwargs": {"chat_template": doors.LONG}}
    body = json.dumps({**plain, **kwargs, "stop_sequences": ["ESCAPE"]}).replace("ESCAPE", "\\s")
    headers = {"content-type": "application/json"}
    answer = httpx.post(
        host.url + doors.MESSAGES, content=body, headers=headers, timeout=doors.SECONDS
    )
    if patched:
        assert answer.status_code == 400
        assert "chat_template_kwargs.chat_template" in answer.text
    else:
        assert doors.prompt_tokens(answer) > doors.LONG_TOKENS
    with a_server() as web:
        for more in (
            {"not": {"$ref": f"{web.url}/x"}},
            {"$id": f"{web.url}/x", "not": {"$ref": "y"}},
        ):
            schema = {"name": "x", "schema": {**SCHEMA, "additionalProperties": False, **more}}
            answer = httpx.post(
                host.url + doors.CHAT,
                json={**plain, "response_format": {"type": FORMAT, FORMAT: schema}},
                timeout=doors.SECONDS,
            )
            assert answer.status_code >= 400
            if patched and "$id" not in more:
                assert answer.status_code == 400
                assert "response_format: $ref" in answer.text
        assert bool(web.asked) == (SET == FETCHES and not patched)
