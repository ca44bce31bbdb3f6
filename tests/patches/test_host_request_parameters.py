"""``host-request-parameters``: each field of a request is read, adapted or refused."""

import contextvars

import pytest

from mlx_patches.core.patch import Target
from mlx_patches.patches._shared.request_fields import FIELDS
from mlx_patches.patches.server.host_request_parameters import patch
from mlx_patches.patches.server.host_request_parameters.probe import read

pytest.importorskip("starlette.requests")
TARGET = patch.PATCH.targets[0]


@pytest.mark.parametrize("package", sorted(patch.IGNORED))
@pytest.mark.parametrize(
    "sent",
    [
        {"n": 1, "best_of": 1, "logprobs": False, "top_logprobs": 0, "typical_p": 1.0},
        {"user": "me", "store": True, "metadata": {"n": 2}, "service_tier": "auto"},
        {"echo": False, "suffix": None, "guided_json": None, "functions": []},
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
    for kind in ("input_image", "input_file"):
        sent = {"input": [{"role": "user", "content": [{"type": "input_text"}, {"type": kind}]}]}
        assert read(TARGET, "mlx_vlm", **sent) == sent
        with pytest.raises(ValueError, match=f"^{kind}: .*only reads text; remove it"):
            read(TARGET, "vllm_mlx", **sent)
    for given in ("hi", ["hi"], [[1, 2]], None, [{"role": "user", "content": "hi"}]):
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
    assert patch.encode_vectors(([[0.5]], 1)) == ([[0.5]], 1)
    context = contextvars.copy_context()
    context.run(FIELDS.set, {"encoding_format": "base64"})
    for vector in ("AAAAPw==", [0.5]):
        assert context.run(patch.encode_vectors, ([vector], 1)) == (["AAAAPw=="], 1)
    assert context.run(patch.encode_vectors, ([[[0.5]]], 1)) == ([["AAAAPw=="]], 1)
