"""``host-request-parameters``: each field of a request is read, adapted or refused."""

import asyncio
import json
import math
import sys
from types import SimpleNamespace

import pytest

from mlx_patches.core.patch import Target
from mlx_patches.patches.server.host_request_parameters import patch
from mlx_patches.patches.server.host_request_parameters.probe import read
from mlx_patches.probes.kit import read_body

requests = pytest.importorskip("starlette.requests")
TARGET = patch.PATCH.targets[0]


@pytest.mark.parametrize("package", sorted(patch.IGNORED))
@pytest.mark.parametrize(
    "sent",
    [
        {"n": 1, "best_of": 1, "logprobs": False, "top_logprobs": 0, "typical_p": 1.0},
        {"user": "me", "store": True, "metadata": {"n": 2}, "service_tier": "auto"},
        {"echo": False, "suffix": "", "functions": []},
        {"max_tokens": 5, "temperature": 0.5, "seed": 7},
    ],
)
def test_body_is_unchanged(package, sent, ungated):
    ungated("host-request-parameters")
    assert read(TARGET, package, **sent) == sent


@pytest.mark.parametrize("package", sorted(patch.IGNORED))
def test_each_ignored_parameter_is_refused_by_name(package, ungated):
    ungated("host-request-parameters")
    for name in patch.IGNORED[package]:
        with pytest.raises(ValueError, match=f"^{name}: not supported by .*; remove it"):
            read(TARGET, package, **{name: 2})


def test_fields_are_adapted(ungated):
    ungated("host-request-parameters")
    body = read(TARGET, "vllm_mlx", stop="a", max_completion_tokens=3)
    assert (body["stop"], body["max_tokens"]) == (["a"], 3)
    assert read(TARGET, "mlx_vlm", stop="a") == {"stop": "a"}
    body = read(TARGET, "vllm_mlx", enable_thinking=False)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert read(TARGET, "vllm_mlx", thinking_budget=3)["thinking_token_budget"] == 3
    assert read(TARGET, "rapid_mlx", repetition_context_size=9)["repetition_penalty_range"] == 9
    assert read(TARGET, "rapid_mlx", logit_bias={"1": 2}) == {"logit_bias": {"1": 2}}
    body = read(TARGET, "app", stop="a", enable_thinking=False)
    assert body["stop"] == ["a"]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    with pytest.raises(ValueError, match="logit_bias: not supported by Rapid-MLX; remove it"):
        read(TARGET, "rapid_mlx", prompt="hi", logit_bias={"1": 2})


def test_parts_that_are_dropped_are_refused(ungated):
    ungated("host-request-parameters")
    for kind in ("input_image", "input_video"):
        parts = [{"type": "input_text", "text": "a"}, {"type": kind, kind: "a"}]
        sent = {"input": [{"role": "user", "content": parts}]}
        if kind == "input_image":
            assert read(TARGET, "mlx_vlm", **sent) == sent
        with pytest.raises(ValueError, match=f"^{kind}: .*only reads text; remove it"):
            read(TARGET, "vllm_mlx", **sent)
    for given in ("hi", ["hi"], [[1, 2]], [{"role": "user", "content": "hi"}]):
        assert read(TARGET, "vllm_mlx", input=given) == {"input": given}


def test_json_object_becomes_a_schema(ungated):
    ungated("host-request-parameters")
    body = {"response_format": {"type": "json_object"}, "text": {"format": {"type": "json_object"}}}
    for package in ("app", "rapid_mlx"):
        read_ = read(TARGET, package, **body)
        assert read_["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert read_["text"]["format"]["schema"] == {"type": "object"}
    assert read(TARGET, "mlx_vlm", **body) == body


def test_other_servers_read_any_field(ungated):
    ungated("host-request-parameters")
    assert read(TARGET, "fastapi", n=2) == {"n": 2}
    assert isinstance(TARGET, Target)


def test_embeddings_are_numbers_without_a_format():
    assert patch.encode([0.5]) == patch.encode("AAAAPw==") == "AAAAPw=="
    assert patch.encode([[0.5]]) == ["AAAAPw=="]
    assert patch.encode_vectors({"choices": []}) == {"choices": []}


NAN, HALF = math.nan, "\ud800"
PICTURE = {"type": "image_url", "image_url": {"url": "a.png"}}


@pytest.mark.parametrize("package", sorted(patch.IGNORED))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", one) for one in (-1, NAN, math.inf, "hot", "nan", True, [1], HALF)),
        *(("seed", one) for one in (1.5, "x", NAN, {})),
        *(("top_p", one) for one in (-0.1, 1.5)),
        *(("max_completion_tokens", one) for one in (-1, 1.5)),
        *(("max_tokens", one) for one in (0, -1, 1.5, "x", [], {}, True)),
        *(("max_output_tokens", one) for one in (0, "")),
        *(("logit_bias", one) for one in ({"a": 1}, {"3": None}, {"3": NAN}, [1])),
        *(("stop", one) for one in (5, [5], [[""]])),
        *(("tools", one) for one in ("x", [1], [None], [{"function": 5}])),
        ("messages", []),
        ("prompt", []),
        *(
            ("tool_choice", {"type": "function"} | one)
            for one in ({}, {"function": 5}, {"function": {"name": "absent"}}, {"name": "absent"})
        ),
        ("tool_choice", {"type": "tool", "name": "absent"}),
        ("tool_choice", {}),
        ("frequency_penalty", 10**30),
        ("model", "a" * 256),
        *(("response_format", {"type": one}) for one in ("json_schema", "x", 5, [])),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
        ("messages", [{"role": "user"}]),
        *(
            ("messages", [{"role": "user", "content": [one]}])
            for one in (5, {}, {"type": "x"}, {"type": "text"}, {"type": "text", "text": NAN})
        ),
        *(
            ("messages", [{"role": "user", "content": [PICTURE | {"image_url": one}]}])
            for one in (None, 5, "", {}, {"url": ""}, {"url": 5})
        ),
        ("metadata", {"deep": [[NAN]]}),
        ("metadata", json.loads("[" * 300 + "]" * 300)),
        ("user", HALF),
    ],
)
def test_value_without_a_meaning_is_refused_by_name(package, name, value, ungated):
    ungated("host-request-parameters")
    with pytest.raises(ValueError, match=name) as error:
        read(TARGET, package, **{name: value})
    assert error.value.status_code == 400
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("package", sorted(patch.IGNORED))
def test_values_with_a_meaning_are_read(package, ungated):
    ungated("host-request-parameters")
    sent = {
        "temperature": "0.5",
        "top_k": -1,
        "top_p": 0,
        "seed": -1,
        "presence_penalty": -2,
        "response_format": {},
        "stop": [""],
        "tools": [],
        "messages": [
            {"role": "user", "content": [PICTURE, {"type": "text", "text": ""}]},
            {"role": "assistant", "content": None, "tool_calls": [{}]},
            {"role": "tool", "content": [{"type": "tool_result", "content": ""}]},
        ],
    }
    body = read(TARGET, package, **sent)
    assert body == sent | {"temperature": 0.5}
    for tool, choice in (
        ({"type": "function", "function": {"name": "f"}}, {"function": {"name": "f"}}),
        ({"type": "function", "name": "f"}, {"name": "f"}),
    ):
        sent = {"tools": [tool], "tool_choice": {"type": "function"} | choice}
        assert read(TARGET, package, **sent) == sent
    assert read(TARGET, package, temperature=None, user=None, top_k=3) == {"top_k": 3}
    body = read(TARGET, package, max_tokens="5", temperature=3)
    assert body == {"max_tokens": 5, "temperature": 3}


def test_mlx_vlm_cannot_repeat_a_higher_temperature_in_a_response(ungated):
    ungated("host-request-parameters")
    assert read(TARGET, "mlx_vlm", input="a", temperature=2)["temperature"] == 2
    for hot in (2.5, "2.5"):
        with pytest.raises(ValueError, match=r"^temperature: /v1/responses"):
            read(TARGET, "mlx_vlm", input="a", temperature=hot)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("endpoint", ["chat_completions_endpoint", "responses_endpoint"])
def test_mlx_vlm_does_not_drop_a_video(endpoint, reads, ungated, monkeypatch):
    ungated("host-request-parameters")
    server = SimpleNamespace(**{"_extract_video_reference": None} if reads else {})
    monkeypatch.setitem(sys.modules, "mlx_vlm.server.openai", server)
    content = [{"type": "video_url", "video_url": {"url": "a.mp4"}}]
    sent = {
        "input" if "response" in endpoint else "messages": [{"role": "user", "content": content}]
    }
    call = read_body(requests.Request, f"mlx_vlm.server:{endpoint}", sent)
    if reads and "chat" in endpoint:
        assert asyncio.run(call) == sent
        return
    with pytest.raises(ValueError, match="reads no videos: send frames as images"):
        asyncio.run(call)


@pytest.mark.parametrize("endpoint", ["images_generations", "create_speech"])
def test_format_of_made_images_and_speech_is_text(endpoint, ungated):
    ungated("host-request-parameters")
    sent = {"prompt": "a cat", "response_format": "b64_json"}
    for package in ("mlx_vlm", "vllm_mlx", "app"):
        call = read_body(requests.Request, f"{package}.server:{endpoint}", sent)
        assert asyncio.run(call) == sent
    with pytest.raises(ValueError, match="response_format: not an object"):
        asyncio.run(read_body(requests.Request, "mlx_vlm.server:chat_completions_endpoint", sent))


def test_body_that_is_no_object_is_refused(ungated):
    ungated("host-request-parameters")
    for body in ([], None, 5, [NAN]):
        with pytest.raises(ValueError, match="not a JSON object"):
            asyncio.run(read_body(requests.Request, "app.x:y", body))


def test_media_that_vllm_mlx_drops_are_refused(ungated, monkeypatch):
    ungated("host-request-parameters")
    engine = SimpleNamespace(is_mllm=False)
    monkeypatch.setitem(sys.modules, "vllm_mlx.server", SimpleNamespace(_engine=engine))
    sent = {"messages": [{"role": "user", "content": [PICTURE]}]}
    with pytest.raises(ValueError, match="takes no images"):
        read(TARGET, "vllm_mlx", **sent)
    assert read(TARGET, "rapid_mlx", **sent) == sent
    engine.is_mllm = True
    assert read(TARGET, "vllm_mlx", **sent) == sent
