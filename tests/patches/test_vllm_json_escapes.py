import asyncio
import json

import pytest

from mlx_patches.patches.vllm_mlx.vllm_json_escapes import patch as json_escapes

TEXTS = ["plain", r"\s+\d", "back\\slash", "\\", 'quote"', "tab\tline\n", "\u00e9\u0001", r"\u0041"]


class Request:
    def __init__(self, body, path="/v1/messages"):
        self._body = body
        self.scope = {"path": path}

    async def body(self):
        return self._body

    async def json(self):
        return json.loads(self._body)


def parse(body, path="/v1/messages"):
    return asyncio.run(json_escapes.parse_lenient(Request.json, Request(body, path)))


@pytest.mark.parametrize("text", TEXTS)
def test_json_escapes_are_kept(text):
    body = json.dumps({"text": text}).encode()
    assert json_escapes.double_backslashes(body) == body
    assert parse(body) == {"text": text}


@pytest.mark.parametrize("text", TEXTS)
def test_lone_backslash_is_escaped(text):
    body = f'{{"lone": "\\d \\uq", "text": {json.dumps(text)}}}'.encode()
    assert parse(body) == {"lone": r"\d \uq", "text": text}


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1,}', b'"\\d'])
def test_other_errors_are_refused(body):
    with pytest.raises(json.JSONDecodeError):
        parse(body)


def test_other_requests_are_strict():
    with pytest.raises(json.JSONDecodeError):
        parse(rb'"\d"', path="/v1/chat/completions")
