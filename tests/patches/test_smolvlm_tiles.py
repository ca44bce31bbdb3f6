from mlx_patches.patches.models.smolvlm_tiles.patch import OPTION, count_tiles


def call_with(*args, **more):
    """The arguments that the release's processor gets."""
    return count_tiles(lambda processor, *args, **more: (args, more), None, *args, **more)


def test_only_a_prompt_with_images_asks_for_tiles():
    assert call_with(["image"], "text") == ((["image"], "text"), {OPTION: True})
    assert call_with(videos=["frame"])[1] == {"videos": ["frame"], OPTION: True}
    assert call_with(text="text") == ((None,), {"text": "text"})
    assert call_with(["image"], return_row_col_info=False)[1] == {OPTION: False}
