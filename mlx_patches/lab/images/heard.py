"""The stage that compares prompts with sounds."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...evidence.words import NOT_APPLICABLE
from .. import Cell
from . import pictures, published
from .judge import EQUAL, argmax, difference, put_in_line, verdict
from .release import WHOLE, array
from .served import TOKENS, chat
from .sounds import save

# The longest chunk of a prompt that cuts a sound.
CHUNK = 8


def compare(compared: Any) -> Cell:
    """Compare the tokens and logits of prompts with sounds, and a chat through the server."""
    facts, off = compared.want.facts, dict[str, Any]()
    cases = list(filter(compared.want.runs, pictures.SOUNDS))
    if not cases:
        return Cell(NOT_APPLICABLE, facts.get("silent", "transformers ran no prompt with a sound"))
    calls = {case: partial(compare_case, compared, case) for case in cases}
    calls |= {call.__name__: partial(call, compared, cases[0]) for call in (generate, serve)}
    for name, call in calls.items():
        try:
            off[name] = call()
        except Exception as error:
            off[name] = put_in_line(error)
    return verdict(off)


def compare_case(compared: Any, case: str) -> Any:
    """How far the logits of a prompt are off, or a sentence if they differ."""
    paths, loaded, images = save(compared.want.folder, case), compared.loaded, compared.images(case)
    own = compared.own[case] = loaded.inputs(compared.prompt(case), images, paths)
    ids = difference(array(own["input_ids"]), compared.want.inputs(case)["input_ids"])
    if isinstance(ids, str):
        return f"ids of {ids}"
    worst, equal = 0.0, compared.equal if images else EQUAL
    runs = [
        ("", compared.adapt_inputs(case), WHOLE, EQUAL),
        (" with its own inputs", own, WHOLE, equal),
        (" in chunks", own, CHUNK, equal),
    ]
    for words, inputs, step, most in runs:
        share = compared.rows_off(case, loaded.run(inputs, compared.sampler(case), step))
        if share > most:
            return f"{share:.2g}{words or compared.where(case)}"
        worst = max(worst, share if most == EQUAL else 0.0)
    return worst


def generate(compared: Any, case: str) -> float:
    """How far the logits of the public function are off."""
    sampler = compared.sampler(case)
    heard = {"sounds": save(compared.want.folder, case)}
    compared.loaded.generate(compared.prompt(case), [], sampler, **heard)
    return float(max(sampler.off))


def serve(compared: Any, case: str) -> Any:
    """0 if a chat through the release's server is answered like the public function's prompt."""
    paths, home = save(compared.want.folder, case), compared.want.folder / "published"
    got = chat(home, [], published.QUESTION, paths)
    prompts = compared.conversation({"type": "audio"}, 1)
    texts = [compared.loaded.generate(one, [], argmax, TOKENS, paths) for one in prompts]
    # Incomplete characters are decoded differently, and a server may strip spaces.
    first, *wanted = (text.replace("\ufffd", "").strip() for text in (got, *texts))
    return 0.0 if first in wanted else f"{first!r} for {wanted[0]!r}"[:160]
