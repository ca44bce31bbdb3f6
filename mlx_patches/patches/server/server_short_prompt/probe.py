"""Searches for a thinking token at the end of prompts of one to twelve tokens."""

from ....probes.kit import Result, Target, class_of

THOUGHT = 99
# How many of the last tokens the server searches.
TAIL = 11


def probe(target: Target) -> Result:
    """Red if the search raises on a short prompt, or misses the token."""
    kind = class_of(target)
    tokenizer = kind.__new__(kind)
    vars(tokenizer)["_think_start_tokens"] = (THOUGHT,)
    failed = []
    for length in range(1, TAIL + 2):
        for place in (-1, length - 1):  # no thinking token, and one at the end
            prompt = list(range(length))
            if place >= 0:
                prompt[place] = THOUGHT
            try:
                found = tokenizer.rfind_think_start(prompt, start=length - TAIL)
            except IndexError:
                found = None
            if found != place:
                failed.append(f"{found}, not {place}, in {length} tokens")
    return Result(bool(failed), "; ".join(failed) or "every thinking token is found")
