import importlib

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.server.vlm_preprocess_turns.probe import _Tokenizer
from mlx_patches.probes.vlm_server import make_preparing_server

from ..releases.conftest import verdict

PATCH = catalogue.builtin().get("vlm-preprocess-turns")


def test_failed_request_ends_its_turn(ungated):
    needed = [target for target in PATCH.targets if verdict(PATCH, target).ok]
    if not needed:
        pytest.skip("this release prepares requests in turn, or in one thread")
    ungated("vlm-preprocess-turns")
    kind, tokenizer = importlib.import_module(needed[0].module).ResponseGenerator, _Tokenizer()
    server = make_preparing_server(kind, None)
    with pytest.raises(Exception, match="NoneType"):
        server._cpu_preprocess("a prompt")
    server.processor = tokenizer
    tokenizer._second.set()  # nobody else comes
    prepared = server._cpu_preprocess("a prompt")
    assert prepared["input_ids"].tolist() == [[1, 2]]
