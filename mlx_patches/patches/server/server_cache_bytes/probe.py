"""Starts the server's generator as its command line does, and fills its prompt cache."""

import argparse
import inspect
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import NotApplicable, Result, Target, module_of

PROMPTS = 4
LIMIT = 2500


def probe(target: Target) -> Result:
    """Red if the prompt cache keeps more bytes than the command line allows."""
    server = module_of(target)
    if "--prompt-cache-bytes" not in inspect.getsource(server):
        raise NotApplicable("this release's server has no --prompt-cache-bytes")
    arguments = argparse.Namespace(prompt_cache_size=10, prompt_cache_bytes=LIMIT)
    provider = SimpleNamespace(cli_args=arguments, load_default=lambda: None)
    caches: list[Any] = []

    def fill(host: str, port: int, generator: Any) -> None:
        generator.stop_and_join()
        cache = generator.prompt_cache
        for first in range(PROMPTS):
            cache.insert_cache("model", [first, 1, 2], [_Layer()])
        caches.append(cache)

    with mock.patch.object(server, "_run_http_server", fill):
        server.run("localhost", 0, provider)
    kept = caches[0].nbytes
    return Result(kept > LIMIT, f"{kept} bytes of {PROMPTS} prompts are kept; the limit is {LIMIT}")


class _Layer:
    """A layer's cache of 1000 bytes."""

    nbytes = 1000

    def is_trimmable(self) -> bool:
        return True
