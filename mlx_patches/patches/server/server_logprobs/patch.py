"""mlx_lm.server: logprobs of the wrong tokens with top_logprobs; none in a stream.

Why: With ``top_logprobs``, the server picks the most probable tokens with ``argpartition``, which
    does not sort them, and reports the first as the answer's token. A streamed answer has no
    log-probabilities at all.
How: The most probable tokens are sorted. As the answer is read, each token gets an entry with its
    own log-probability, and the reply has these entries; a chunk of a stream has those of the
    tokens since the chunk before.
Upstream: Not fixed in mlx-lm 0.32.2. Releases up to 0.30.5 reply in another format, with the
    answer's own tokens, and are not repaired.
Retire when: Each entry of ``logprobs.content`` describes the answer's token, streamed or not.
"""

from collections.abc import Iterator
from typing import Any

from ....core.verbs import Patch, before, result

Entry = dict[str, Any]


class TopTokens(tuple[Entry, ...]):
    """The most probable tokens, the best first, and the tokenizer that names others."""

    tokenizer: Any


def sort_tokens(top_tokens: Any, logprobs: Any, count: Any, tokenizer: Any, /) -> TopTokens:
    """The tokens of a position, the most probable first."""
    found = TopTokens(sorted(top_tokens, key=lambda entry: -entry["logprob"]))
    found.tokenizer = tokenizer
    return found


def has_tokens(logprobs: Any, count: Any, /) -> bool:
    """Whether a request wants the most probable tokens."""
    return bool(count > 0)


def share_entries(handler: Any, request: Any, /) -> None:
    """Give a request and its handler one list of the answer's entries."""
    handler.logprob_entries = request.logprob_entries = []


def collect_entries(
    answer: tuple[Any, Any], generator: Any, request: Any, args: Any, /
) -> tuple[Any, Any]:
    """The context of a request and its responses, whose entries are collected as they are read."""
    context, responses = answer
    entries = getattr(request, "logprob_entries", None)
    if entries is None or not (args.logprobs or args.top_logprobs > 0):
        return context, responses
    return context, add_entries(responses, entries)


def add_entries(responses: Iterator[Any], entries: list[Entry]) -> Iterator[Any]:
    """Yield the responses; each adds the entry of its token."""
    for response in responses:
        entries.append(make_entry(response))
        yield response


def make_entry(response: Any) -> Entry:
    entry = {"id": response.token, "logprob": response.logprob}
    top = response.top_tokens
    if not isinstance(top, TopTokens):
        return entry
    (name,) = top.tokenizer.convert_ids_to_tokens([response.token])
    return {"id": entry["id"], "token": name, "logprob": entry["logprob"], "top_logprobs": top}


def report_entries(reply: Any, handler: Any, /, tokens: Any) -> Any:
    """A reply, or a chunk of a stream, with the entries of its tokens."""
    entries = getattr(handler, "logprob_entries", None)
    if entries:
        kept = entries if handler.stream else entries[: len(tokens or ())]
        reply["choices"][0]["logprobs"] = {"content": list(kept)}
        entries.clear()
    return reply


PATCH = Patch(
    id="server-logprobs",
    targets=(
        *result(
            "mlx_lm.server:_format_top_logprobs",
            sort_tokens,
            when=has_tokens,
            supports=True,  # on some devices the release's are in order
        ),
        *before("mlx_lm.server:APIHandler.handle_completion", share_entries, supports=True),
        *result("mlx_lm.server:ResponseGenerator.generate", collect_entries, supports=True),
        *result("mlx_lm.server:APIHandler.generate_response", report_entries),
    ),
)
