"""A model's folder names its files; only those in the folder, or linked from it, are opened."""

import json

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.loading.model_file_names import patch
from mlx_patches.patches.loading.model_file_names.probe import write_tokenizer, write_weights


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        *((name, True) for name in ("../a", "a/../../b", "/etc/a", "..", "C:\\a", "a\\..\\..\\b")),
        *((name, False) for name in ("a.safetensors", "sub/a.safetensors", "..a", "a..b/c", "")),
    ],
)
def test_path_leaves_folder(name, leaves):
    assert patch.leaves_folder(name) is leaves


def test_error_is_one_line_with_file_and_remedy(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "../a\n" + "b" * 500}}))
    with pytest.raises(ValueError, match="use a name in the folder") as raised:
        patch.check_weights(tmp_path)
    assert is_refusal(raised.value)
    assert str(index) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "[", "5", "[]", '{"weight_map": 5}', '{"weight_map": {"a": 5}}']
)
def test_unreadable_index_is_left_to_the_release(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    patch.check_weights(tmp_path)


def test_link_to_a_hub_blob_is_followed(ungated, tmp_path):
    """A Hub cache's snapshot links each file to ``../../blobs``."""
    utils = pytest.importorskip("mlx_vlm.utils")
    ungated("model-file-names")
    folder = tmp_path / "snapshots" / "main"
    folder.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mlx_patches_none"}))
    file = write_weights(folder, "model-00001-of-00001.safetensors")
    blob = tmp_path / "blobs" / "1f"
    file.rename(blob)
    file.symlink_to("../../blobs/1f")
    with pytest.raises(ValueError, match="mlx_patches_none"):  # the weights were read before
        utils.load_model(folder)


def test_folder_has_the_tokenizer_unless_the_caller_names_one(ungated, tmp_path):
    transformers = pytest.importorskip("transformers")
    ungated("model-file-names")
    folder, outside = tmp_path / "model", tmp_path / "outside.json"
    folder.mkdir()
    write_tokenizer(folder, outside, {"tokenizer_file": str(outside)})
    load = transformers.PreTrainedTokenizerFast.from_pretrained
    assert load(folder).get_vocab() == {"inside": 0}
    assert load(folder, tokenizer_file=str(outside)).get_vocab() == {"outside": 0}
