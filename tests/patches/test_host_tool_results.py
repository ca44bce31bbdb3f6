"""``host-tool-results``: nothing of a tool's result is lost or moves."""

import sys
from types import SimpleNamespace

import pytest

from mlx_patches.patches.server.host_tool_results import patch
from mlx_patches.patches.server.host_tool_results.probe import read

pytest.importorskip("starlette.requests")
TARGET = patch.PATCH.targets[0]
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "7"}
OTHER = {"type": "tool_result", "tool_use_id": "2"}
TEXT = {"type": "text", "text": "a"}
PICTURE = {"type": "image", "source": {"type": "url", "url": "a.png"}}
PARTS = [TEXT, {"type": "output_text", "text": "b"}]


@pytest.fixture(autouse=True)
def _applied(ungated, monkeypatch):
    ungated("host-tool-results")
    for name in ("mlx_vlm.server.responses_state", "vllm_mlx.server"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("package", ["mlx_vlm", "vllm_mlx", "rapid_mlx", "app"])
@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([RESULT, TEXT], [[RESULT], [TEXT]]),
        ([RESULT, OTHER, PICTURE, TEXT], [[RESULT, OTHER], [PICTURE, TEXT]]),
        ([TEXT, RESULT, TEXT], [[TEXT], [RESULT], [TEXT]]),
        ([RESULT, OTHER], [[RESULT, OTHER]]),
        ([PICTURE, TEXT], [[PICTURE, TEXT]]),
        ([], [[]]),
        ("a", ["a"]),
        ([5, RESULT], [[5], [RESULT]]),
        (None, [None]),
    ],
)
def test_message_is_split_between_results_and_other_parts(package, content, wanted):
    message = {"role": "user", "name": "me", "content": content}
    found = read(TARGET, package, messages=[message, "x"], model="m")
    parts = [{"role": "user", "name": "me", "content": one} for one in wanted]
    assert found == {"messages": [*parts, "x"], "model": "m"}


@pytest.mark.parametrize(
    ("package", "name", "item", "field", "is_joined"),
    [
        ("vllm_mlx", "messages", {"role": "tool"}, "content", True),
        ("vllm_mlx", "input", {"type": "function_call_output"}, "output", True),
        ("rapid_mlx", "input", {"type": "function_call_output"}, "output", True),
        ("mlx_vlm", "input", {"type": "function_call_output"}, "output", True),
        ("rapid_mlx", "messages", {"role": "tool"}, "content", False),
        ("mlx_vlm", "messages", {"role": "tool"}, "content", False),
        ("vllm_mlx", "messages", {"role": "user"}, "content", False),
    ],
)
def test_result_in_parts_becomes_a_text(package, name, item, field, is_joined):
    sent = item | {field: PARTS}
    found = read(TARGET, package, **{name: [sent]})
    assert found == {name: [item | {field: "a\nb"} if is_joined else sent]}


def user(*parts):
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("package", "result", "field"),
    [
        ("mlx_vlm", {"role": "tool"}, "content"),
        ("mlx_vlm", {"type": "function_call_output"}, "output"),
        ("vllm_mlx", {"role": "tool"}, "content"),
        ("rapid_mlx", {"type": "function_call_output"}, "output"),
    ],
)
def test_images_follow_the_results_that_a_server_would_drop(package, result, field):
    name = "messages" if field == "content" else "input"
    sent = [result | {field: [PICTURE, TEXT]}, result | {field: [PICTURE]}, user(TEXT)]
    found = read(TARGET, package, **{name: sent})[name]
    results = [result | {field: "a"}, result | {field: ""}]
    assert found == [*results, user(PICTURE, PICTURE), user(TEXT)]
    last = read(TARGET, package, **{name: sent[1:2]})[name]
    assert last == [results[1], user(PICTURE)]


def test_images_in_a_message_of_results():
    results = [RESULT | {"content": [TEXT, PICTURE]}, OTHER]
    found = read(TARGET, "vllm_mlx", messages=[user(*results, TEXT)])["messages"]
    assert found == [user(RESULT | {"content": "a"}, OTHER), user(PICTURE), user(TEXT)]
    # These servers read them.
    for package in ("mlx_vlm", "rapid_mlx"):
        sent = {"messages": [user(*results)]}
        assert read(TARGET, package, **sent) == sent


def test_outputs_that_mlx_vlm_reads_are_unchanged(monkeypatch):
    sent = {"input": [{"type": "function_call_output", "output": [PICTURE, TEXT]}]}
    state = SimpleNamespace(**{patch._READER: None})
    monkeypatch.setitem(sys.modules, "mlx_vlm.server.responses_state", state)
    assert read(TARGET, "mlx_vlm", **sent) == sent
    assert read(TARGET, "rapid_mlx", **sent) != sent


def test_one_engine_of_vllm_mlx_reads_the_images_of_tools(monkeypatch):
    engine = type("SimpleEngine", (), {})()
    monkeypatch.setitem(sys.modules, "vllm_mlx.server", SimpleNamespace(_engine=engine))
    sent = {"messages": [{"role": "tool", "content": [PICTURE, TEXT]}]}
    assert read(TARGET, "vllm_mlx", **sent) == sent


@pytest.mark.parametrize("result", ["7", None, [], [5], [{"type": "text"}], {}])
def test_other_results_are_unchanged(result):
    sent = {"messages": [{"role": "tool", "content": result}]}
    wanted = "" if result == [] else result
    assert read(TARGET, "vllm_mlx", **sent)["messages"][0]["content"] == wanted


@pytest.mark.parametrize("sent", [{"messages": 5}, {"input": "a"}, {"prompt": ["a"]}])
def test_bodies_without_messages_are_unchanged(sent):
    assert read(TARGET, "vllm_mlx", **sent) == sent


def test_other_applications_read_their_bodies():
    sent = {"messages": [{"role": "user", "content": [RESULT, TEXT]}]}
    assert read(TARGET, "own_app", **sent) == sent
