"""mlx-lm: a generation that is not consumed to its end breaks later calls in its thread.

Why: ``generate_step`` yields its tokens from inside ``with mx.stream(...)``. Between two tokens,
    and for good if the reader stops early, everything that the thread does runs on the generation's
    stream. If an unfinished generation is collected in another thread, it raises "[StreamContext]
    Destroyed in a different thread than it was constructed in".
How: Before each token is yielded, the thread's default device and stream are restored; when the
    generation resumes, its own are set again. If another thread closes the generation, nothing is
    left to restore, and that error is suppressed.
Upstream: mlx-lm 0.31.3 left its stream before each token; not fixed in mlx-lm 0.32.2.
Retire when: A generation yields its tokens outside its stream.
"""

from collections.abc import Iterator
from threading import get_ident
from typing import Any

from ....core.verbs import Patch, mx, result

Defaults = tuple[Any, Any]


def restore_defaults(tokens: Any) -> Iterator[Any]:
    """Yield a generator's items, each with the reader's own device and stream as the defaults."""
    thread, own = get_ident(), None
    try:
        while True:
            reader = read_defaults()
            here = get_ident() == thread
            if own is not None and here:
                write_defaults(own)
            try:
                token = next(tokens)
            except StopIteration:
                return
            finally:
                if here:
                    own = read_defaults()
                write_defaults(reader)
            yield token
    finally:
        reader = read_defaults()
        close(tokens, thread)
        write_defaults(reader)


def close(tokens: Any, thread: int) -> None:
    """Close a generator that was started in the thread of this id, from any thread."""
    try:
        tokens.close()
    except RuntimeError as error:
        if get_ident() == thread or "StreamContext" not in str(error):
            raise


def read_defaults() -> Defaults:
    import mlx.core as mx

    device = mx.default_device()
    return device, mx.default_stream(device)


def write_defaults(defaults: Defaults) -> None:
    device, stream = defaults
    mx.set_default_device(device)
    mx.set_default_stream(stream)


PATCH = Patch(
    id="generator-stream",
    severity="crash",
    targets=result(
        ["mlx_lm.generate:generate_step", "mlx_lm.generate:speculative_generate_step"],
        restore_defaults,
    ),
)
