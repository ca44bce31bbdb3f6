from types import SimpleNamespace

import pytest

from mlx_patches.patches.vllm_mlx.vllm_empty_prompt import patch
from mlx_patches.patches.vllm_mlx.vllm_empty_prompt.probe import PROMPT, answer_beside
from mlx_patches.probes.vllm_scheduler import Server, build_llama

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("vllm-mlx"), reason="tests of vllm-mlx")


@pytest.fixture(autouse=True)
def _applied(ungated):
    ungated("vllm-empty-prompt")


@pytest.fixture(scope="module")
def model():
    return build_llama()


@pytest.mark.parametrize("prompt", ["", " " * 100, []], ids=["text", "blanks", "tokens"])
def test_empty_prompt_is_refused_others_continue(model, prompt):
    server = Server(model)
    solo = Server(model).answer(PROMPT)
    answer, refused = answer_beside(server, prompt)
    assert answer == solo
    assert "the prompt has no tokens" in refused
    assert not server.scheduler.waiting
    assert not server.scheduler.running
    assert server.answer(PROMPT) == solo


def test_error_reaches_client(model):
    from fastapi import HTTPException

    with pytest.raises(HTTPException) as raised:
        Server(model).add("")
    assert raised.value.status_code == 400


@pytest.mark.parametrize("prompt", ["7", " " * 100 + "7", [7]])
def test_one_token_prompt_is_answered(model, prompt):
    answer, refused = answer_beside(Server(model), prompt)
    assert not refused
    assert answer == Server(model).answer(PROMPT)


def test_only_beginning_is_tokenized_again(model, monkeypatch):
    server = Server(model)
    encode = server.scheduler.tokenizer.encode
    lengths = []
    monkeypatch.setattr(
        server.scheduler.tokenizer, "encode", lambda text: lengths.append(len(text)) or encode(text)
    )
    server.add("7 " * 500)
    assert lengths[:2] == [64, 1000]


def test_tokenized_request_is_not_tokenized_again(model):
    server = Server(model)
    server.add([7])
    request = server.request
    server.scheduler.requests.clear()
    server.scheduler.waiting.clear()
    request.prompt, request.prompt_token_ids = "", [5, 9]
    server.scheduler.add_request(request)
    assert list(server.scheduler.waiting) == [request]


def test_empty_prompt_with_images_is_not_refused():
    """Rapid-MLX's scheduler adds the tokens of the images later."""
    scheduler = SimpleNamespace(processor=SimpleNamespace(encode=list))
    patch.refuse_empty_media(scheduler, "", ["a.png"], None)
    patch.refuse_empty_media(scheduler, "a", None, None)
    with pytest.raises(Exception, match="the prompt has no tokens"):
        patch.refuse_empty_media(scheduler, "", None, [])


def test_messages_with_text_are_unchanged():
    messages = [{"role": "user", "content": "a"}]
    assert patch.leave_a_message(messages) is messages
    assert patch.leave_a_message([]) == [{"role": "user", "content": ""}]
