"""Texts in chunks, one per token."""

import itertools


def join_text(responses):
    return "".join(response.text for response in responses)


def splits(text):
    """Every way to cut a text into chunks."""
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        chunks, last = [], 0
        for place, is_cut in enumerate(cuts, 1):
            if is_cut:
                chunks.append(text[last:place])
                last = place
        yield [*chunks, text[last:]]
