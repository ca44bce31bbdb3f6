"""``vlm-model-swap``: requests to several models, in turns."""

import asyncio
from typing import Any

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_model_swap import patch
from mlx_patches.patches.server.vlm_model_swap.probe import get
from mlx_patches.probes.vlm_server import loading

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


@pytest.fixture
def served(ungated):
    """An application that answers with its model after a while, and its loaded models."""
    fastapi = pytest.importorskip("fastapi")
    if not hasattr(pytest.importorskip("mlx_vlm.server"), "ResponseGenerator"):
        pytest.skip("this release's server has no ResponseGenerator")
    ungated("vlm-model-swap")
    with loading() as server:
        app, loaded = fastapi.FastAPI(), []

        async def endpoint(model: str) -> str:
            server.get_cached_model(model)
            generator = server.response_generator
            if generator not in loaded:
                loaded.append(generator)
            if model == "broken":
                raise fastapi.HTTPException(status_code=500)
            await asyncio.sleep(0.05)
            return str(generator.name)

        app.add_api_route("/{model}", endpoint)
        yield app, loaded
    assert not patch.USERS and not patch.WAITING


def test_waiting_requests_of_a_model_share_a_turn(served):
    app, loaded = served

    async def send() -> list[Any]:
        return await asyncio.gather(*(get(app, f"/{name}") for name in "abababab"))

    assert asyncio.run(send()) == [*"abababab"]
    assert [one.name[0] for one in loaded] == [*"aba"]


def test_request_to_the_loaded_model_does_not_overtake_one_that_waits(served):
    app, _ = served
    order = []

    async def send(name: str, after: float) -> None:
        await asyncio.sleep(after)
        order.append(await get(app, f"/{name}"))

    async def send_all() -> None:
        await asyncio.gather(send("a", 0), send("b", 0.02), send("a", 0.03))

    asyncio.run(send_all())
    assert order == ["a", "b", "a"]


def test_failed_request_holds_no_other_back(served):
    app, _ = served

    async def send() -> list[Any]:
        return await asyncio.gather(*(get(app, f"/{name}") for name in ("broken", "a", "broken")))

    assert asyncio.run(send())[1] == "a"


def test_model_is_not_loaded_for_a_client_that_left(served):
    app, loaded = served

    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send() -> list[Any]:
        return await asyncio.gather(get(app, "/a"), get(app, "/b", leave))

    assert asyncio.run(send()) == ["a", ""]
    assert len(loaded) == 1


def test_model_that_a_server_loads_as_it_starts_is_free(served):
    app, _ = served
    server: Any = pytest.importorskip("mlx_vlm.server")

    async def start(app: Any, scope: Any, receive: Any, send: Any) -> None:
        server.get_cached_model("a")

    asyncio.run(patch.end_visit(start, app, {"type": "lifespan"}, None, None))
    assert asyncio.run(get(app, "/b")) == "b"
