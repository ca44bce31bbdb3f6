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


def test_invalid_body_is_the_clients_fault():
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("OpenAIRequest", content=(list[int], ...))

    async def endpoint():
        kind(content=["image data"])

    with pytest.raises(ValueError, match=r"^content\.0: Input should be a valid integer") as caught:
        asyncio.run(patch.answer(endpoint))
    assert caught.value.status_code == 400 and "image data" not in str(caught.value)


def test_only_images_without_a_source_are_refused():
    source = {"type": "input_image", "image_url": "x"}
    text = {"type": "input_text", "text": ""}
    for content in ([source, text], [{**source, "type": "image_url"}], "text", None, [5]):
        patch.check_parts({"type": "message", "content": content})
    for url in ("", None, {"url": ""}, {}):
        with pytest.raises(ValueError, match="an image has no source"):
            patch.check_parts({"type": "message", "content": [{**source, "image_url": url}]})


def test_messages_answers_a_client_with_status_400():
    try:
        raise client_error("no image")
    except ValueError:
        assert patch.answer_client(lambda *sent: sent, 500, "no image", "api_error") == (
            400,
            "no image",
        )
    assert patch.answer_client(lambda *sent: sent, 500, "other", "api_error") == (
        500,
        "other",
        "api_error",
    )
