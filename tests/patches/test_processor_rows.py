from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab import Family, generators
from mlx_patches.lab.build import build
from mlx_patches.patches import catalogue
from mlx_patches.patches.generation.processor_rows.patch import (
    cut_list,
    fill_list,
    have_processors,
)

from ..releases.models import module_or_skip

PATCH = catalogue.builtin().get("processor-rows")
TOKENS = 12
# Prompts with the repetition penalty of each; 0 means none.
ROWS = [([5, 9, 2], 0.0), ([7, 3], 1.8), ([4, 4, 8, 1], 0.0), ([6, 2, 6], 2.5), ([3], 1.3)]


@pytest.fixture
def generate():
    return module_or_skip("mlx_lm.generate", "PromptProcessingBatch")  # which joins the lists


def test_lists_follow_rows():
    kept = [1, 2]
    assert cut_list(kept, 2) is kept
    assert cut_list(kept, 1) == [1]
    one = ["processor"]
    rows = fill_list([None, one, []], 5)
    assert rows == [[], one, [], [], []]
    assert rows[1] is one
    assert len({id(row) for row in rows}) == 5
    assert fill_list([one, one], 1) == [one]


@pytest.mark.parametrize(
    ("processors", "tokens", "needed"),
    [
        ([[]], [], False),
        ([None], [], False),
        ([], [], False),
        ([[print]], [], True),
        ([], [[1]], True),
    ],
)
def test_check_finds_processors_in_either_batch(processors, tokens, needed):
    bare = SimpleNamespace(uids=[0], logits_processors=[[]], token_context=[])
    other = SimpleNamespace(uids=[1], logits_processors=processors, token_context=tokens)
    assert have_processors(bare, other) is have_processors(other, bare) is needed
    checks = {t.when.check for t in PATCH.targets if t.name == "GenerationBatch.extend"}
    assert checks == {have_processors}


@pytest.mark.parametrize("nothing", [None, []], ids=["None", "empty"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (0, 2, 4, 1, 3), (2, 0, 0, 3, 1)], ids=str)
def test_changing_rows_equal_solo(generate, order, nothing, ungated):
    ungated("processor-rows")
    model = llama()
    rows = [ROWS[index] for index in order]
    batch = answers(generate, model, rows, nothing, every=6)
    assert batch == [answers(generate, model, [row], nothing)[0] for row in rows]


def test_rows_without_processors_are_bit_identical(generate, ungated):
    model = llama()
    rows = [(prompt, 0.0) for prompt, _ in ROWS]
    before = answers(generate, model, rows, [], every=3, measure=float_bits)
    ungated("processor-rows")
    assert answers(generate, model, rows, [], every=3, measure=float_bits) == before


def llama():
    return build(Family("mlx-lm", "llama")).module


def float_bits(answer):
    return answer.logprobs.view(mx.uint32).tolist()


def answers(generate, model, rows, nothing, every=1, measure=lambda answer: answer.token):
    """The answers of the release's engine for rows that join in pairs and end one by one."""
    from mlx_lm.sample_utils import make_logits_processors

    engine = generate.BatchGenerator(model)
    found, order = {}, []
    for turn in range(5 * TOKENS):
        pair, due = divmod(turn, every)
        coming = rows[2 * pair : 2 * pair + 2] if due == 0 else []
        if coming:
            order += engine.insert(
                [prompt for prompt, _ in coming],
                [TOKENS - 2 * len(prompt) for prompt, _ in coming],
                logits_processors=[
                    make_logits_processors(repetition_penalty=penalty) if penalty else nothing
                    for _, penalty in coming
                ],
            )
        for answer in engine.next()[1]:
            found.setdefault(answer.uid, []).append(measure(answer))
    return [found[uid] for uid in order]


@pytest.mark.parametrize("order", [(0, 2, 1, 4, 3), (1, 0, 2, 3), (2, 3, 0, 1)], ids=str)
def test_vlm_engine_rows_equal_solo(order, ungated):
    module_or_skip("mlx_vlm.generate", "GenerationBatch")  # which takes the processors
    ungated("processor-rows")
    rows = [ROWS[index] for index in order]
    assert vision_answers(rows, every=2) == [vision_answers([row])[0] for row in rows]


def vision_answers(rows, every=1):
    """The answers of mlx-vlm's engine for rows that join one by one and end one by one."""

    def make_penalty(penalty):
        def process(tokens, logits):
            seen = mx.zeros(logits.shape[-1]).at[tokens].add(1) > 0
            return logits - penalty * seen

        return process

    generator = generators.make_generator(
        build(Family("mlx-vlm", "mistral3")), TOKENS, prefill_batch_size=1, completion_batch_size=8
    )
    found, order = {}, []
    for turn in range(4 * TOKENS):
        row, due = divmod(turn, every)
        if due == 0 and row < len(rows):
            prompt, penalty = rows[row]
            order += generator.release.insert(
                [prompt],
                max_tokens=[TOKENS - 2 * len(prompt)],
                prompt_kwargs=[generator._own(prompt)],
                logits_processors=[[make_penalty(penalty)] if penalty else None],
            )
        for uid, one in generator.next():
            found.setdefault(uid, []).append(one.token)
    return [found[uid] for uid in order]


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"processor-rows": ((SimpleNamespace(logits_processors=[], token_context=[]),) * 2, {})}
