"""mlx-lm, mlx-vlm: loading a model opens weight and tokenizer files outside of its folder.

Why: A model's folder names its files, and the releases open any path. mlx-vlm opens the weight
    files of ``model.safetensors.index.json``, and rewrites a file in place while it reads a tensor
    of a type that MLX lacks. transformers opens what ``tokenizer_config.json`` names as
    ``fast_tokenizer_files``, and up to 5.13 as ``tokenizer_file``.
How: A folder is refused if it names an absolute path, or one with ``..``, for its weights or
    ``fast_tokenizer_files``. Links in the folder are followed, as in a Hub cache. The tokenizer's
    files that the folder has take precedence over its config, as in transformers 5.14. The patch
    needs only the names of two functions of transformers, so it works in every release.
Upstream: Not fixed in mlx-vlm 0.7.10 and transformers 5.20.2.
Retire when: No supported release opens a file by a path that leaves the model's folder.
"""

import json
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from ....core.errors import refusal
from ....core.verbs import Function, Patch, before, wrap
from ..._shared.targets import SAFE_LIMIT

INDEX = "*.safetensors.index.json"


def check_weights(folder: Any, /) -> None:
    """Refuse a folder whose weight index names a file outside of it."""
    for index in Path(folder).expanduser().glob(INDEX):
        try:
            names = json.loads(index.read_text())["weight_map"].values()
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # the release reads the same file, and its errors are its own
        check_names(names, index)


def check_tokenizers(tokenization_files: Any) -> None:
    check_names(tokenization_files, "tokenizer_config.json: fast_tokenizer_files")


def check_names(names: Any, where: Any) -> None:
    """Refuse names of files that may be outside of the folder that names them."""
    for name in names:
        if isinstance(name, str) and leaves_folder(name):
            outside = f"names the file {name[:120]!r}, outside of the model's folder"
            raise refusal(ValueError(f"{where} {outside}: use a name in the folder"))


def check_weights_of(model: Any, folder: Any, /) -> None:
    check_weights(folder)


def leaves_folder(name: str) -> bool:
    """Whether a path, read as POSIX or Windows does, may be outside of the folder it belongs to."""
    return any(
        kind(name).anchor or ".." in kind(name).parts for kind in (PurePath, PureWindowsPath)
    )


def prefer_own_files(load: Function, cls: Any, files: Any, *args: Any, **kwargs: Any) -> Any:
    """Pass the folder's tokenizer files as the caller's, which its config cannot replace."""
    own = name_own_files(cls, files)
    given = {name: value for name, value in kwargs.items() if value is not None or name not in own}
    return load(cls, files, *args, **(own | given))


def name_own_files(cls: Any, files: Any) -> dict[str, Any]:
    """The arguments for a tokenizer's files: the folder's, or None for one that it lacks."""
    names = {*cls.vocab_files_names, "tokenizer_file"}
    return {name: file for name, file in files.items() if name in names}


_TOKENIZERS = "transformers.tokenization_utils_base"

PATCH = Patch(
    id="model-file-names",
    **SAFE_LIMIT,
    targets=(
        *before("mlx_vlm.utils:load_model", check_weights),
        *before("mlx_vlm.models.minimax_h3.weights:_component_files", check_weights),
        *before("mlx_vlm.models.sam3d_body.model:SAM3DBody.load_all_weights", check_weights_of),
        *before(f"{_TOKENIZERS}:get_fast_tokenizer_file", check_tokenizers),
        *wrap(
            f"{_TOKENIZERS}:PreTrainedTokenizerBase._from_pretrained",
            prefer_own_files,
            supports=True,
        ),
    ),
)
