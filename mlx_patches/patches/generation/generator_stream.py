"""A generation changes the default stream of the thread that reads its tokens.

Why
    ``generate_step`` gives its tokens from inside ``with mx.stream(...)``. Between two of them,
    and for good where a reader stops early, whatever the thread does runs on the generation's
    stream. A generation that was left and is collected in another thread raises "[StreamContext]
    Destroyed in a different thread than it was constructed in".
How
    The thread's default device and stream are put back whenever a token is handed out, and are
    the generation's again while it goes on. Where it is closed by another thread there is nothing
    left to put back, and that error is not raised.
Upstream
    mlx-lm 0.31.3 left the stream for each token; not fixed in mlx-lm 0.32.2.
Retire when
    A generation gives its tokens from outside its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from ...core.patch import Patch, Target, around

Defaults = tuple[Any, Any]


def generated(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """The tokens of an answer, one by one."""
    return step_aside(generate(*args, **kwargs))


def step_aside(tokens: Any) -> Iterator[Any]:
    """What a generator gives, each with the reader's own defaults in place."""
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
    """End a generator that a thread began, from any thread."""
    try:
        tokens.close()
    except RuntimeError as error:
        if get_ident() == thread or "StreamContext" not in str(error):
            raise


def read_defaults() -> Defaults:
    """The default device and stream of this thread."""
    import mlx.core as mx

    device = mx.default_device()
    return device, mx.default_stream(device)


def write_defaults(defaults: Defaults) -> None:
    """Set the default device and stream of this thread."""
    import mlx.core as mx

    device, stream = defaults
    mx.set_default_device(device)
    mx.set_default_stream(stream)


PATCH = Patch(
    id="generator-stream",
    summary="a generation that is read halfway leaves its stream as the thread's default",
    targets=tuple(
        Target("mlx-lm", "mlx_lm.generate", name, around(generated))
        for name in ("generate_step", "speculative_generate_step")
    ),
    probe="mlx_patches.probes.generator_stream:probe",
    module=__name__,
)
