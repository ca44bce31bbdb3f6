"""mlx_lm.server with Mistral, Devstral or Ministral: every tool call is lost.

Why: When an answer ends, the server parses the text of a call that is still open if the last
    response has the state ``tool``. A stop token or a stop string leads to no state at all, so the
    call is dropped: every call of Mistral, Devstral and Ministral, which have no end marker.
How: A response without a state gets that of the response before it.
Upstream: mlx-lm 1307, 1373, 1447; fixed in mlx-lm 0.32.0. Releases up to 0.31.1 have no states and
    are not repaired.
Retire when: No supported release is older than mlx-lm 0.32.0.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ....core.verbs import Patch, result


def keep_states(answer: tuple[Any, Any]) -> tuple[Any, Any]:
    """The context of a request and its responses, each with a state."""
    context, responses = answer
    return context, fill_states(responses) if hasattr(context, "sequences") else responses


def fill_states(responses: Iterator[Any]) -> Iterator[Any]:
    """Yield the responses; one without a state gets the state before it."""
    state = None
    for response in responses:
        if state and response.state is None:
            response = dataclasses.replace(response, state=state)
        state = response.state
        yield response


PATCH = Patch(
    id="server-open-calls",
    targets=result(
        "mlx_lm.server:ResponseGenerator.generate",
        keep_states,
        fingerprint_of=("ResponseGenerator.generate", "APIHandler.handle_completion", "Response"),
    ),
)
