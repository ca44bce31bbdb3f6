import functools
import logging
import threading

import mlx.core as mx
import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.lab import server_thread
from mlx_patches.lab.image_scenarios import compare_with_solo, whole_of
from mlx_patches.lab.server_thread import Client, Clients, Processor, running
from mlx_patches.lab.whole import Prompt, build_whole
from mlx_patches.patches.server.vlm_request_failure import patch, probe
from mlx_patches.probes.fixtures import BATCH_PATCHES

from ..releases.models import build_or_skip, or_skip

FAILURE = "mlx_patches: a request failed; the server goes on with the others"


@pytest.fixture
@or_skip()
def kind():
    return server_thread.response_generator()


@pytest.fixture
def whole(kind):
    return whole_of(build_or_skip("mlx-vlm:llava"))


# How many requests there are, and which fail: the first is decoded when the others come at once.
@pytest.mark.parametrize(
    ("count", "fails"), [(4, (1,)), (4, (2,)), (4, (3,)), (4, (1, 3)), (4, (1, 2, 3)), (1, (0,))]
)
def test_other_requests_equal_solo(kind, whole, count, fails, ungated, beside):
    beside(*BATCH_PATCHES)
    ungated("vlm-request-failure")
    prompts = [prompt_of(whole, row, row in fails) for row in range(count)]
    last = prompt_of(whole, count)
    answers = serve_clients(kind, whole, prompts, last, fails)
    right = [row for row in range(count + 1) if row not in fails]
    cell = compare_with_solo(
        whole, [[*prompts, last][row] for row in right], [answers[row] for row in right]
    )
    assert cell.verdict == "green", cell.detail


def prompt_of(whole, row, fails=False):
    """A request with an image; one that fails has no tokens of its image."""
    text = [1 + row, 2, *whole.tokens, *range(3, 4 + row)]
    shown = whole.images.inputs(text, [row])
    return Prompt(min(row, 1), [1, 2, 3] if fails else text, 8 if row == 0 else 4, shown=shown)


def serve_clients(kind, whole, prompts, last, fails):
    """The clients' answers; some fail, each with its own error; the last comes later."""
    clients = Clients(prompts)
    inputs = {f"row {row}": one.inputs for row, one in enumerate([*prompts, last])}
    mx.eval(list(inputs.values()))
    *texts, text = inputs
    try:
        again = functools.partial(build_whole, whole.lab.family)
        with running(kind, again, Processor(inputs, clients.see)) as generator:
            with pytest.raises(ValueError, match="one image per input"):
                clients.answers(generator, texts)
            clients._until(lambda: all(map(Client.has_left, clients.all)))
            late = Client(generator, text, last)
            late.start()
            clients._until(late.has_left)
    finally:
        clients.dismiss()
    errors = {row: one.error for row, one in enumerate(clients.all) if one.error}
    assert tuple(errors) == fails
    assert len(set(map(id, errors.values()))) == len(fails)
    assert not late.error
    return [one.output for one in (*clients.all, late)]


@pytest.mark.parametrize(("first", "others"), [(20, ()), (2, (20,)), (2, (20, 22)), (2, (6, 22))])
def test_failures_are_separate(kind, first, others, ungated, caplog):
    ungated("vlm-request-failure")
    ungated("vlm-stop-text")  # whose layer runs the call that raises the error
    with caplog.at_level(logging.WARNING):
        answers = probe.serve(kind, first, others)
    wanted = {one: probe.expect(one) for one in (first, *others)}
    assert answers == wanted
    bad = [one for one in wanted if one in probe.FAILS]
    assert [one.getMessage() for one in caplog.records] == [FAILURE] * len(bad)
    assert [str(one.exc_info[1]) for one in caplog.records] == [wanted[one] for one in bad]


@pytest.mark.parametrize("thread", [None, threading.Thread()])
def test_error_outside_loop_is_raised(kind, thread, ungated):
    ungated("vlm-request-failure")
    server = kind.__new__(kind)
    server.model, server.vision_cache = probe.make_model(), None
    if thread:
        server._thread = thread
    with pytest.raises(ValueError, match="no embeddings of 20"):
        server._gpu_embed(probe.make_inputs([20])["20"])


def test_failed_request_keeps_no_arrays(kind):
    def embed(server):
        raise ValueError("no embeddings")

    server = kind.__new__(kind)
    server._thread = threading.current_thread()
    tokens, given = patch.embed_or_fail_later(embed, server)
    assert given == {}
    assert vars(tokens)["_error"].__traceback__ is None
    assert is_refusal(vars(tokens)["_error"])  # no layer of the request's thread is blamed
    with pytest.raises(ValueError, match="no embeddings"):
        tokens.squeeze(0)
