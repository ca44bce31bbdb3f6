import contextvars
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_tool_choice import patch
from mlx_patches.patches.server.vlm_tool_choice.probe import TOOLS, begin_answer

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")
CALL, TEXT = 5, 7


@pytest.fixture
def server(ungated):
    server = pytest.importorskip("mlx_vlm.server")
    if not hasattr(server, "_build_gen_args"):
        pytest.skip("this release's server has no ResponseGenerator")
    ungated("vlm-tool-choice")
    return server


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "any"},
        {"type": "tool", "name": "f"},
        {"type": "function", "name": "f"},
        {"type": "function", "function": {"name": "f"}},
    ],
)
def test_required_call_begins_the_answer(server, choice):
    logits = begin_answer(server, choice)
    assert [one for one in logits if one == 0] == [logits[CALL]]


@pytest.mark.parametrize("choice", [None, "auto", "none", {"type": "auto"}, 5])
def test_other_answers_are_free(server, choice):
    assert begin_answer(server, choice)[TEXT] == 0


@pytest.mark.parametrize("sent", [{"tools": None}, {"tools": []}])
def test_required_call_without_tools_is_refused(server, sent):
    with pytest.raises(ValueError, match="tool_choice: a required call is not supported"):
        begin_answer(server, "required", **sent)


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("none", None),
        ({"type": "none"}, None),
        ("auto", TOOLS),
        ("required", TOOLS),
        (None, TOOLS),
        ({"type": "function", "function": {"name": "g"}}, TOOLS[1:]),
        ({"type": "function", "name": "g"}, TOOLS[1:]),
        ({"type": "tool", "name": "g"}, TOOLS[1:]),
    ],
)
def test_request_keeps_the_tools_that_may_be_called(choice, kept):
    body = {"tools": TOOLS, "tool_choice": choice, "model": "m"}
    assert patch.select_tools(body) == {**body, "tools": kept}


def test_unknown_tool_is_refused():
    with pytest.raises(ValueError, match="tool_choice: tools has no h"):
        patch.select_tools({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}})


def test_marker_of_several_tokens_is_forced_in_order():
    import mlx.core as mx

    process = patch.StartCall([3, 1])
    logits = mx.zeros((1, 4))

    def list_allowed(row):
        return [index for index, one in enumerate(row[0].tolist()) if one == 0]

    for start in (process, process.clone()):
        assert list_allowed(start(mx.array([0]), logits)) == [3]
        assert list_allowed(start.process_last_token(3, logits)) == [1]
        assert list_allowed(start.process_last_token(1, logits)) == [0, 1, 2, 3]
        start.reset()
        assert list_allowed(start(mx.array([0]), logits)) == [3]


def test_summary_is_free():
    class Request:
        tool_choice = "required"

        def model_copy(self, update):
            return update

    assert patch.free_summary(Request()) == {"tool_choice": "auto"}


def test_shared_tokenizer_keeps_its_padding():
    class Backend:
        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            return SimpleNamespace(ids=[ord(letter) for letter in text])

    tokenizer = SimpleNamespace(backend_tokenizer=Backend())  # its own encode would set the padding
    assert patch.encode(SimpleNamespace(tokenizer=tokenizer), "ab") == [97, 98]


@pytest.mark.parametrize(("choice", "wanted"), [("none", None), ("auto", "json_tools")])
def test_forbidden_calls_are_not_looked_for(choice, wanted):
    def look() -> object:
        patch.select_tools({"tools": TOOLS, "tool_choice": choice})
        return patch.forget_parser("json_tools")

    assert contextvars.copy_context().run(look) == wanted
