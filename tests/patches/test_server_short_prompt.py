import importlib
from types import SimpleNamespace

import pytest

from ..releases.conftest import is_installed

if not is_installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose server this is", allow_module_level=True)
utils = importlib.import_module("mlx_lm.tokenizer_utils")
if not hasattr(utils.TokenizerWrapper, "_find"):
    pytest.skip("this release does not look for thoughts in a prompt", allow_module_level=True)
server = importlib.import_module("mlx_lm.server")
THOUGHT = (98, 99)


class Tokenizer(utils.TokenizerWrapper):
    has_chat_template = has_thinking = True
    has_tool_calling = False
    response_initial_state = None
    _think_start_tokens = THOUGHT
    _think_end_tokens = (97,)

    def __init__(self, prompt):
        vars(self)["prompt"] = prompt

    def apply_chat_template(self, *args, **kwargs):
        return list(self.prompt)


def split_chat(prompt):
    generator = server.ResponseGenerator.__new__(server.ResponseGenerator)
    generator.model_provider = SimpleNamespace(
        cli_args=SimpleNamespace(chat_template_args={}), default_model_map={}, processor=None
    )
    request = SimpleNamespace(
        request_type="chat",
        messages=[{"role": "user", "content": "hi"}],
        tools=None,
        role_mapping=None,
        images=None,
    )
    arguments = SimpleNamespace(chat_template_kwargs=None)
    return generator._tokenize(Tokenizer(prompt), request, arguments)


@pytest.mark.parametrize("length", range(2, 15))
@pytest.mark.parametrize("thinks", [True, False])
def test_chats_of_any_length(length, thinks, ungated):
    ungated("server-short-prompt")
    prompt = list(range(length))
    if thinks:
        prompt[-2:] = THOUGHT
    whole, segments, kinds, state, *_ = split_chat(prompt)
    assert whole == prompt
    assert [token for segment in segments for token in segment] == prompt
    assert len(kinds) == len(segments)
    assert state == ("reasoning" if thinks else "normal")
    if thinks:
        assert segments[-1] == list(THOUGHT)


@pytest.mark.parametrize("start", [None, 0, 1, 2, 5])
def test_other_searches_are_unchanged(start, ungated):
    tokenizer = utils.TokenizerWrapper.__new__(utils.TokenizerWrapper)

    def searches():
        return [
            tokenizer._find([1, 2, 3, 2, 3], (2, 3), start=start, end=end, reverse=reverse)
            for end in (None, 4, 5)
            for reverse in (True, False)
        ]

    before = searches()
    ungated("server-short-prompt")
    assert searches() == before
