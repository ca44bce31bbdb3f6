"""``vlm-unread-images``: each endpoint answers a bad image with status 400."""

import asyncio
import io
import json
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches._shared.refusals import client_error
from mlx_patches.patches.server.vlm_unread_images import patch

jinja2 = pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


def test_error_is_one_that_endpoints_know():
    server = pytest.importorskip("mlx_vlm.server")
    error = patch.blame_client(ValueError("no image <_io.BytesIO object>"))
    assert (error.status_code, str(error)) == (400, "Failed to read the images: no image")
    known = getattr(getattr(server, "openai", None), "PromptTooLongError", ValueError)
    assert isinstance(error, known)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (client_error("no image"), 400),
        (jinja2.TemplateError("roles must alternate"), 400),
        (jinja2.TemplateSyntaxError("no template", 1), 500),
        (OSError(), 500),
    ],
)
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


def test_refusal_after_an_invalid_body_is_not_replaced():
    """vllm-mlx reads a body with invalid escapes by other code."""

    async def endpoint():
        try:
            json.loads("\\s")
        except json.JSONDecodeError:
            raise client_error("chat_template: not supported")  # noqa: B904

    with pytest.raises(ValueError, match=r"^chat_template: not supported$"):
        asyncio.run(patch.answer(endpoint))


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


@pytest.mark.parametrize(
    ("text", "images"), [("<i>", 1), ("<i><i><i>", 1), ("<i>\n<i>", 2), ("<i><i>", 2), ("", 3)]
)
def test_placeholders_that_fit_are_accepted(text, images):
    patch.check_count(text, "<i>", images, "images")


@pytest.mark.parametrize(("text", "images"), [("<i>", 2), ("<i> <i>", 1), ("<i><i> <i>", 1)])
def test_other_numbers_of_placeholders_are_refused(text, images):
    with pytest.raises(ValueError, match=rf"^The prompt has <i> \d times, for {images} images$"):
        patch.check_count(text, "<i>", images, "images")


def test_prompt_without_placeholder_is_refused_unless_the_processor_adds_it():
    mx = pytest.importorskip("mlx.core")
    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda token: 3)
    processor = SimpleNamespace(image_token="<i>", tokenizer=tokenizer)

    def process(ids):
        call = lambda *args, **kwargs: {"input_ids": mx.array([ids])}  # noqa: E731
        return patch.process_counted(call, processor, ["text"], ["image"], None)

    assert process([1, 3])["input_ids"].tolist() == [[1, 3]]
    with pytest.raises(ValueError, match=r"^The prompt has no <i>: apply the chat template"):
        process([1, 2])
    processor.image_token = None
    assert process([1, 2])


@pytest.mark.parametrize(
    ("inputs", "images", "is_read"),
    [
        ({"pixel_values_videos": 1}, None, True),
        ({"pixel_values": 1}, None, True),  # MiniCPM-V returns frames as images
        ({"pixel_values": 1}, ["image"], False),
        ({"input_ids": 1}, None, False),
    ],
)
def test_dropped_video_is_refused(inputs, images, is_read):
    processor = SimpleNamespace()

    def process():
        call = lambda *args, **kwargs: inputs  # noqa: E731
        return patch.process_counted(call, processor, "text", images, None, videos=["video"])

    if is_read:
        assert process() == inputs
    else:
        with pytest.raises(ValueError, match=r"^SimpleNamespace reads no videos: send frames"):
            process()


def test_batch_has_at_most_one_image_per_prompt():
    assert patch.check_rows([], ["text"]) is None
    assert patch.check_rows(["a"], ["text", "text"]) == ["a"]
    assert patch.check_rows("a", ["text"]) == "a"
    with pytest.raises(ValueError, match=r"^There are 2 images for 1 prompts$"):
        patch.check_rows(["a", "b"], ["text"])


def test_pictures_are_decoded():
    images = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    images.new("RGB", (40, 30)).save(file, "JPEG")
    content = file.getvalue()
    files = {"good": content, "cut": content[: len(content) // 2], "none": b"none"}
    media = SimpleNamespace(
        is_url=lambda source: source.startswith("http"),
        process_image_input=lambda source: io.BytesIO(files[source]),
    )
    patch.decode(media, "good")
    patch.decode(media, "http://none")
    for source in ("cut", "none", "a path", ""):
        with pytest.raises(ValueError, match=r"^Failed to read the images: ") as caught:
            patch.decode(media, source)
        assert caught.value.status_code == 400
