"""``vlm-unread-images``: each endpoint answers a bad image with status 400."""

import asyncio

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches._shared.refusals import client_error
from mlx_patches.patches.server.vlm_unread_images import patch

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


def test_error_is_one_that_endpoints_know():
    server = pytest.importorskip("mlx_vlm.server")
    error = patch.blame_client(ValueError("no image <_io.BytesIO object>"))
    assert (error.status_code, str(error)) == (400, "Failed to read the images: no image")
    known = getattr(getattr(server, "openai", None), "PromptTooLongError", ValueError)
    assert isinstance(error, known)


@pytest.mark.parametrize(("cause", "status"), [(client_error("no image"), 400), (OSError(), 500)])
def test_client_error_is_not_replaced(cause, status):
    fastapi = pytest.importorskip("fastapi")

    async def endpoint():
        try:
            raise cause
        except Exception:
            raise fastapi.HTTPException(status_code=500, detail="failed")  # noqa: B904

    with pytest.raises(fastapi.HTTPException) as caught:
        asyncio.run(patch.answer(endpoint))
    assert caught.value.status_code == status
