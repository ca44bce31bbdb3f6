import asyncio
import time

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches import catalogue
from mlx_patches.patches._shared import host_bodies
from mlx_patches.patches.server.host_schema_refs import patch

URL = "http://127.0.0.1/x"


def in_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


@pytest.mark.parametrize(
    "body",
    [
        in_format({"$ref": URL}),
        in_format({"properties": {"a": {"items": [{"$ref": "file:///etc/passwd"}]}}}),
        in_format({"$dynamicRef": f" {URL}"}),
        {"tools": [{"function": {"parameters": {"anyOf": [{"$ref": URL}]}}}]},
        {"text": {"format": {"schema": {"$ref": URL}}}},
        {"extra_body": {"guided_json": {"$ref": URL}}},
    ],
)
def test_external_reference_is_refused(body, caplog):
    with pytest.raises(ValueError, match="may not refer to another document") as refused:
        patch.check_body({"messages": [], **body})
    assert is_refusal(refused.value)
    assert next(iter(body)) in str(refused.value)
    assert "host-schema-refs refused" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        in_format({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}),
        in_format({"$id": URL, "$schema": URL, "$ref": "#"}),
        in_format({"properties": {"$ref": {"type": "string", "format": "uri"}}}),
        in_format({"default": {"$ref": URL}, "enum": [{"$ref": URL}]}),
        {"messages": [{"role": "user", "content": {"$ref": URL}}]},
        [1],
        "text",
    ],
)
def test_other_bodies_are_passed_on(body):
    patch.check_body(body)


def test_time_is_linear():
    nested = {}
    for _ in range(100_000):
        nested = {"a": nested, "b": [1]}
    started = time.thread_time()
    patch.check_body(in_format(nested))
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("check", ["host-request-templates", "host-schema-refs"])
def test_repaired_body_is_checked(check):
    rank = catalogue.builtin().rank
    assert rank(check) > rank("vllm-json-escapes")


class Request:
    def __init__(self, text):
        endpoint = eval("lambda: None", {"__name__": "vllm_mlx.server"})
        self.scope = {"endpoint": endpoint}
        self.text = text

    async def body(self):
        return self.text

    async def json(self):
        return host_bodies.json.loads(self.text)


def test_invalid_escapes_are_checked():
    """vllm-mlx repairs such a body and uses it."""
    seen = []
    request = Request(rb'{"chat_template_kwargs": {"chat_template": "x"}, "stop": "\s"}')
    with pytest.raises(ValueError, match="escape"):
        asyncio.run(host_bodies.read_checked(Request.json, request, seen.append))
    assert seen == [{"chat_template_kwargs": {"chat_template": "x"}, "stop": "\\s"}]


def validate(schema):
    jsonschema = pytest.importorskip("jsonschema")
    call = eval("lambda check, schema: check(1, schema)", {"__name__": "vllm_mlx.api"})
    return call(jsonschema.validate, schema)


def test_nothing_is_retrieved_for_a_host(tmp_path, monkeypatch):
    core = pytest.importorskip("referencing._core")
    original = core.Registry.get_or_retrieve
    monkeypatch.setattr(
        core.Registry,
        "get_or_retrieve",
        lambda registry, uri: patch.retrieve_known(original, registry, uri),
    )
    file = tmp_path / "secret.json"
    file.write_text('{"const": "secret"}')
    for schema in ({"$ref": file.as_uri()}, {"$id": f"{tmp_path.as_uri()}/x", "$ref": file.name}):
        with pytest.raises(ValueError, match="may not refer to another document") as refused:
            validate(schema)
        assert is_refusal(refused.value)
        assert "secret'" not in str(refused.value)
    validate({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}})
    validate({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"})
