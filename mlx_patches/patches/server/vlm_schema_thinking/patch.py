"""mlx_vlm.server with enable_thinking ignores a JSON schema if the model does not think.

Why: With ``enable_thinking``, the schema waits for the token that ends the thinking. A model that
    begins its answer at once never sends it, so the whole answer is free text.
How: If the prompt has not opened the thinking, the first token decides: only the token that begins
    the thinking and those that the schema allows can be sampled. After the former the schema waits
    as before, after the others it continues.
Upstream: Not fixed in mlx-vlm 0.7.10. Before 0.7 the schema waits only if the prompt opens the
    thinking.
Retire when: The server applies the schema to an answer without thinking.
"""

from typing import Any

from ....core.verbs import Patch, mx, result


class FirstToken:
    """A processor that waits for the end of the thinking, if the first token begins it."""

    def __init__(self, waiting: Any):
        self._waiting = waiting
        self._begins = find_first_token(waiting)
        self._decided = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._waiting, name)

    def clone(self) -> Any:
        return FirstToken(self._waiting.clone())

    def reset(self) -> None:
        self._decided = False
        self._waiting.reset()

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """The logits of the first token, or of each token if the engine passes all tokens."""
        if self._decided:
            return self._waiting(tokens, logits)
        return add_token(self._waiting.processor(tokens, logits), logits, self._begins)

    def process_last_token(self, token: int, logits: Any) -> Any:
        if not self._decided:
            self._decided = True
            if token == self._begins:
                self._waiting.reset()
            else:
                self._waiting._active = True
        return self._waiting.process_last_token(token, logits)


def find_first_token(waiting: Any) -> int:
    """The first token of the text that begins the thinking."""
    text = waiting.thinking_start_token
    return int(waiting.tokenizer.encode(text, add_special_tokens=False)[0])


def add_token(allowed: Any, logits: Any, token: int) -> Any:
    """The logits that a schema allows, and that of one more token."""
    return mx.where(mx.arange(logits.shape[-1]) == token, logits, allowed)


def decide_by_first_token(
    processors: list[Any], generator: Any, /, args: Any, input_ids: Any
) -> list[Any]:
    """The processors of a request; those that wait are decided by the first token."""
    from mlx_vlm.structured import ThinkingAwareLogitsProcessor as Waiting

    waiting = [index for index, one in enumerate(processors) if isinstance(one, Waiting)]
    if waiting and not generator._prompt_has_open_thinking(args, input_ids):
        for index in waiting:
            processors[index] = FirstToken(processors[index])
    return processors


PATCH = Patch(
    id="vlm-schema-thinking",
    targets=result(
        "mlx_vlm.server.generation:ResponseGenerator._make_logits_processors", decide_by_first_token
    ),
)
