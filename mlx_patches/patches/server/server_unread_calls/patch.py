"""mlx_lm.server loses the whole answer if it cannot parse a tool call.

Why: The server drops a tool call that its parser cannot read, and still ends the answer with
    ``finish_reason: "tool_calls"``. The client gets neither a call nor a text. With ``tool_choice:
    "none"`` it gets a call.
How: The text of such a call is returned as content. If no call of the answer is readable, it ends
    with ``finish_reason: "stop"``. With ``tool_choice: "none"``, every call is returned as text.
Upstream: Not fixed in mlx-lm 0.32.2. Releases without ``ToolCallFormatter`` (up to 0.31.1) are not
    repaired: their handler parses elsewhere.
Retire when: The server returns the text of a call that it cannot read.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap


class Calls(list[Any]):
    """Tool calls for a reply, their texts, and whether the answer has any call.

    ``unread`` are the texts of unreadable calls, ``texts`` those of all.
    """

    def __init__(self, calls: list[Any], unread: str, texts: str, has_any: bool):
        super().__init__(calls)
        self.unread, self.texts, self.has_any = unread, texts, has_any

    def turn_into_text(self) -> None:
        """Drop the calls; their texts are content."""
        self.clear()
        self.unread, self.has_any = self.texts, False


def read_calls(read: Function, formatter: Any, tool_calls: list[str]) -> Calls:
    found: list[Any] = []
    unread: list[str] = []
    for text in tool_calls:
        try:
            calls = read(formatter, [text])
        except ValueError:  # mlx-lm 0.31.2 lets the parser's error pass
            calls = []
        found += calls
        unread += [] if calls else [text]
    formatter.has_any = bool(found) or getattr(formatter, "has_any", False)
    return Calls(found, "".join(unread), "".join(tool_calls), formatter.has_any)


def reply_with_text(
    reply: Function, handler: Any, text: str, finish_reason: str | None, *args: Any, **options: Any
) -> Any:
    """A reply, or a chunk of a stream, with the text of unreadable calls."""
    for calls in (*args, *options.values()):  # another patch's layer passes them by position
        if isinstance(calls, Calls):
            if handler.body.get("tool_choice") == "none":
                calls.turn_into_text()
            text += calls.unread
            finish_reason = find_reason(finish_reason, calls)
    return reply(handler, text, finish_reason, *args, **options)


def find_reason(reason: str | None, calls: Calls) -> str | None:
    return "stop" if reason == "tool_calls" and not calls.has_any else reason


PATCH = Patch(
    id="server-unread-calls",
    targets=(
        *wrap("mlx_lm.server:ToolCallFormatter.__call__", read_calls),
        *wrap("mlx_lm.server:APIHandler.generate_response", reply_with_text, supports=True),
    ),
)
