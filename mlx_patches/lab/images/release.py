"""What the release computes for the prompts of a folder, stage by stage, without torch."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .authors import DECODED, first_layers, parts

# The packages that users of mlx-vlm need not have; a release runs without them.
WITHOUT = ("torchvision", "torch")
# More than any prompt: prefill in one chunk.
WHOLE = 1 << 20
Arrays = dict[str, Any]


class NeedsTorch(Exception):
    """The release loads a folder's model, but not its processor, in a process without torch."""


class Loaded:
    """A folder that ``mlx_vlm.load`` loaded, or only its model.

    ``seen``: the results of the parts in the last run.
    """

    def __init__(self, folder: Path, only_model: bool = False):
        vlm = importlib.import_module("mlx_vlm")
        try:
            if only_model:
                self.model, self.processor = vlm.utils.load_model(folder), None
            else:
                self.model, self.processor = vlm.load(str(folder))
        except Exception as error:
            if sys.modules.get(WITHOUT[0], self) is not None:
                raise
            vlm.utils.load_model(folder)
            raise NeedsTorch from error
        self.seen: dict[str, list[Any]] = {}
        for stage, part in parts(self.model):
            _record(part, self._keep(stage))
        if layers := first_layers(self.model.language_model):
            _record(layers[0], self._keep("merged", of_output=False))

    @property
    def reads_videos(self) -> bool:
        """Whether the function that prepares inputs takes videos, which it does from 0.5 on."""
        prepare = importlib.import_module("mlx_vlm.utils").prepare_inputs
        return "videos" in inspect.signature(prepare).parameters

    def _keep(self, stage: str, of_output: bool = True) -> Callable[[Any, Any], None]:
        """A function that keeps the first output of a part, or its first arguments."""

        def keep(args: Any, output: Any) -> None:
            self.seen.setdefault(stage, arrays(output if of_output else args))

        return keep

    def inputs(
        self,
        prompt: str,
        images: Sequence[str],
        sounds: Sequence[str] = (),
        videos: Sequence[Any] = (),
        fps: float = 0.0,
    ) -> Arrays:
        prepare = importlib.import_module("mlx_vlm.utils").prepare_inputs
        media = {"videos": [one.transpose(0, 3, 1, 2) for one in videos], "fps": fps}
        config = self.model.config
        names = ("image_token_index", "image_token_id")
        token = next((getattr(config, n) for n in names if getattr(config, n, None)), None)
        found = prepare(
            self.processor,
            images=list(images) or None,
            audio=list(sounds) or None,
            prompts=[prompt],
            image_token_index=token,
            add_special_tokens=False,
            **(media if videos else {}),
        )
        return {name: value for name, value in found.items() if value is not None}

    def run(self, inputs: Mapping[str, Any], sampler: Any, step: int = WHOLE) -> list[Any]:
        """The log-probabilities of each generated token: one after the prompt, others decoded.

        Args:
            step: the longest chunk of the prompt.
        """
        kwargs = dict(inputs)
        ids, mask = kwargs.pop("input_ids"), kwargs.pop("attention_mask", None)
        pixels = kwargs.pop("pixel_values", None)
        self.seen.clear()
        steps = _generate_step()(
            ids,
            self.model,
            pixels,
            mask,
            max_tokens=DECODED + 1,
            sampler=sampler,
            prefill_step_size=step,
            **kwargs,
        )
        return [array(logprobs).reshape(-1) for _, logprobs in steps]

    def generate(
        self,
        prompt: str,
        images: Sequence[str],
        sampler: Any,
        count: int = DECODED + 1,
        sounds: Sequence[str] = (),
    ) -> str:
        """The text of the public function, whose sampler records the log-probabilities."""
        vlm = importlib.import_module("mlx_vlm")
        options = {"max_tokens": count, "sampler": sampler, "verbose": False}
        options |= {"audio": list(sounds)} if sounds else {}
        found = vlm.generate(self.model, self.processor, prompt, list(images) or None, **options)
        return str(getattr(found, "text", found))

    def stream(self, prompt: str, images: Sequence[str], sampler: Any) -> str:
        """The text of the public stream."""
        stream = importlib.import_module("mlx_vlm").stream_generate
        options = {"max_tokens": DECODED + 1, "sampler": sampler}
        found = stream(self.model, self.processor, prompt, list(images) or None, **options)
        return "".join(one.text for one in found)

    def batch(self, prompts: Sequence[str], images: Sequence[str], sampler: Any) -> list[str]:
        """The texts of the public function, for prompts of one image each."""
        vlm = importlib.import_module("mlx_vlm")
        options = {"max_tokens": DECODED + 1, "sampler": sampler, "prompts": list(prompts)}
        scope = inspect.unwrap(vlm.batch_generate).__globals__
        template = scope["apply_chat_template"]
        # The prompts are complete: they hold the image tokens that a template would add.
        scope["apply_chat_template"] = lambda processor, config, prompt, **_: prompt
        try:
            return list(
                vlm.batch_generate(self.model, self.processor, list(images), **options).texts
            )
        finally:
            scope["apply_chat_template"] = template

    def chat(self, images: int, question: str) -> str:
        """The prompt of a conversation with images, by the release's own chat format."""
        apply = importlib.import_module("mlx_vlm.prompt_utils").apply_chat_template
        config = self.model.config
        return str(apply(self.processor, config, question, num_images=images))


def _generate_step() -> Callable[..., Any]:
    try:
        return importlib.import_module("mlx_vlm.generate").generate_step  # type: ignore[no-any-return]
    except AttributeError:
        return importlib.import_module("mlx_vlm.generate.ar").generate_step  # type: ignore[no-any-return]


def _record(module: Any, keep: Callable[[Any, Any], Any]) -> None:
    """Pass each call's arguments and output to ``keep``; modules are called through their class."""
    kind = type(module)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = kind.__call__(self, *args, **kwargs)
        keep((*args, *kwargs.values()), output)
        return output

    module.__class__ = type(
        kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__}
    )


def arrays(output: Any) -> list[Any]:
    if hasattr(output, "shape"):
        return [output]
    if isinstance(output, (list, tuple)):
        return [value for one in output for value in arrays(one)]
    values = getattr(output, "__dict__", {}).values() if output is not None else ()
    return [value for value in values if hasattr(value, "shape")]


def array(value: Any) -> Any:
    """An array, or a list of them, as one of NumPy."""
    import mlx.core as mx
    import numpy as np

    if isinstance(value, (list, tuple)):
        return np.stack([array(one) for one in value])
    if isinstance(value, mx.array) and value.dtype == mx.bfloat16:
        value = value.astype(mx.float32)
    return np.asarray(value)
