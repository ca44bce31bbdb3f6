from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.lab import Family, offline
from mlx_patches.lab.build import build
from mlx_patches.patches.generation.batch_generate import patch as batch_generate

from ..releases.conftest import is_installed

needs_vlm = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="this set has no mlx-vlm")

PROMPTS = [[5, 9, 2], [7, 3, 8, 4, 6], [11, 12, 13, 14, 15, 16, 17, 18]]
COUNT = 6


@pytest.fixture
def applied():
    mlx_patches.apply(["padded-prompts", "padded-deltas"])
    yield
    mlx_patches.restore()


def answers(model, prompts):
    return [[one.token for one in row] for row in offline.batch_generate(model, prompts, COUNT)]


@pytest.fixture(scope="module")
def model():
    return build(Family("mlx-vlm", "gemma3"))


@pytest.fixture(scope="module")
def solo(model):
    return [answers(model, [prompt])[0] for prompt in PROMPTS]


@needs_vlm
def test_prompt_order(applied, model, solo):
    assert answers(model, PROMPTS) == solo
    assert answers(model, PROMPTS[::-1]) == solo[::-1]


@needs_vlm
def test_right_padding_tokenizer(applied, model, solo):
    rows = offline.batch_generate(model, PROMPTS, COUNT, padding_side="right")
    assert [[one.token for one in row] for row in rows] == solo


@needs_vlm
def test_model_is_restored(applied, model):
    whole = offline.WholeModel(model)
    before = dict(vars(whole))
    masks = []
    view = batch_generate.record_masks(whole, masks)
    view.get_input_embeddings(mx.array([[1, 2]]), None, mask=mx.ones((1, 2)))
    assert vars(whole) == before
    assert type(view) is type(whole)
    assert view.language_model is whole.language_model
    assert [mask.shape for mask in masks] == [(1, 2)]


class Generator:
    tokenizer = SimpleNamespace(pad_token_id=0)

    def insert(self, prompts, max_tokens=None, **kwargs):
        self.given = (prompts, kwargs)
        return list(range(len(prompts)))


def insert_prompts(mask, generator, prompts, **kwargs):
    def generate(model):
        model.get_input_embeddings(mask=mask)
        insert = batch_generate.insert_unpadded
        return insert(Generator.insert, generator, prompts, 9, **kwargs)

    model = SimpleNamespace(get_input_embeddings=lambda mask: None)
    assert batch_generate.generate_unpadded(generate, model) == [0, 1]
    return generator.given


ROWS = [{"inputs_embeds": 1}, {"inputs_embeds": 2}]


@pytest.mark.parametrize(
    "mask",
    [None, mx.ones((2, 3)), mx.ones((2, 4)), mx.array([[0, 0, 0], [1, 1, 1]])],
    ids=["none", "no padding", "of other prompts", "an empty prompt"],
)
def test_unpadded_prompts_are_unchanged(mask):
    prompts = [[1, 2, 3], [4, 5, 6]]
    given, kwargs = insert_prompts(mask, Generator(), prompts, prompt_kwargs=ROWS)
    assert given is prompts
    assert kwargs["prompt_kwargs"] is ROWS


def test_other_prompts_are_unchanged():
    prompts = [[1, 2, 3], [4, 5, 6]]
    mask = mx.array([[1, 0, 1], [1, 1, 1]])
    assert insert_prompts(mask, Generator(), prompts, prompt_kwargs=ROWS)[0] is prompts
    prompts, mask = [[0, 1], [2, 3]], mx.array([[0, 1], [1, 1]])
    given, kwargs = insert_prompts(
        mask, Generator(), prompts, prompt_kwargs=ROWS, attention_mask=mask
    )
    assert given is prompts
    assert kwargs["attention_mask"] is mask

    assert batch_generate.find_padded_spans([[1, 2]]) is None
    generator, prompts = Generator(), [[0, 1], [2, 3]]
    batch_generate.insert_unpadded(Generator.insert, generator, prompts, prompt_kwargs=ROWS)
    assert generator.given[0] is prompts


def test_padding_is_removed():
    row = {
        "inputs_embeds": mx.arange(4)[None, :, None],
        "position_ids": mx.broadcast_to(mx.array([1, 0, 1, 2]), (3, 1, 4)),
        "rope_deltas": mx.array([[-1]]),
        "attention_mask_4d": mx.ones((1, 1, 4, 4)),
        "grid": mx.array([[1, 4, 4]]),
        "more": "text",
    }
    own = batch_generate.cut_arguments(
        row, (1, 4), 4, lambda name, value, length: name == "position_ids"
    )
    assert own["inputs_embeds"].tolist() == [[[1], [2], [3]]]
    assert own["position_ids"].tolist() == [[[0, 1, 2]]] * 3
    assert own["rope_deltas"].tolist() == [[0]]
    for name in ("attention_mask_4d", "grid", "more"):
        assert own[name] is row[name]
    assert row["inputs_embeds"].shape == (1, 4, 1)


def test_image_deltas_are_kept():
    # Three image patches share a position: later positions are the column number minus two.
    row = {"position_ids": mx.array([[0, 1, 1, 1, 2]]), "rope_deltas": mx.array([[-9]])}
    assert batch_generate.recompute_delta(row)["rope_deltas"].tolist() == [[-2]]
    assert "rope_deltas" not in batch_generate.recompute_delta({"position_ids": mx.array([[0]])})


def test_pad_token_is_found():
    spans = batch_generate.find_spans_by_token
    assert spans([[0, 0, 5], [7, 8, 9]], 0) == [(2, 3), (0, 3)]
    assert spans([[5, 0, 0], [7, 0, 9]], 0) == [(0, 1), (0, 3)]
    # The padding token is also the first token of every prompt.
    assert spans([[0, 0, 5], [0, 8, 9]], 0) == [(1, 3), (0, 3)]
    assert spans([[1, 2], [3, 4]], 0) is None
    assert spans([[0, 0], [3, 4]], 0) is None
    assert spans([[0, 2], [3, 4]], None) is None


def test_embeddings_are_left_padded():
    passed = {}

    def process(generator, prompts, **kwargs):
        passed.update(kwargs, prompts=prompts)

    model = SimpleNamespace(get_input_embeddings=lambda mask: None)
    mask = mx.array([[1, 0], [1, 1]])
    embeds = mx.array([[[5], [0]], [[6], [7]]])

    def generate(view):
        view.get_input_embeddings(mask=mask)
        prompts = [(0, [5, 0], 9), (1, [6, 7], 9)]
        batch_generate.process_unpadded(
            process, Generator(), prompts, inputs_embeds=embeds, more=None
        )

    batch_generate.generate_unpadded(generate, model)
    assert passed["prompts"] == [(0, [5], 9), (1, [6, 7], 9)]
    assert passed["inputs_embeds"].tolist() == [[[0], [5]], [[6], [7]]]
    assert passed["more"] is None
