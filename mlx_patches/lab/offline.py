"""The releases' public ``batch_generate``, with a tokenizer and a whole model around a tiny one.

Prompts are texts of decimal token ids; the tokenizer reads these ids and pads on the left like
real tokenizers do. The family's model computes the embeddings of a text if it can do so without
its vision part; if not, the language model reads the token ids.
"""

import importlib
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable
from . import Generated, LabModel
from .engine import MARKS, own_positions, unless_refused
from .generators import Endless, TextOnly
from .whole import embed_prompt

# Attributes that a whole model may read even for a text.
PARTS = ("vision_tower", "audio_tower", "vision_model", "embed_vision", "embed_audio")
_IDS = re.compile(r"ids((?: \d+)+);")


@unless_refused()
def batch_generate(
    model: LabModel,
    prompts: Sequence[Sequence[int]],
    count: int,
    grid: Any = None,
    padding_side: str = "left",
) -> list[list[Generated]]:
    """Return the tokens that the public function generates greedily, ``count`` per row.

    Args:
        prompts: token ids per row, in ascending order of length, since the release sorts them.
        grid: the grid of the image in every prompt, of shape (1, 3); None for texts.
        padding_side: the side that the tokenizer pads on, whichever side the release requests.
    """
    generate = getattr(importlib.import_module(model.family.package), "batch_generate", None)
    if generate is None:
        raise NotApplicable("the release has no batch_generate")
    if model.family.distribution == "mlx-lm":
        answers = generate(model.module, _Numbers(), [list(p) for p in prompts], max_tokens=count)
        return [[Generated(token) for token in _figures(text)] for text in answers.texts]
    steps: list[Any] = []

    def greedy(logprobs: Any) -> Any:
        steps.append(logprobs)
        return mx.argmax(logprobs, axis=-1)

    texts = [f"ids {' '.join(map(str, prompt))};" for prompt in prompts]
    images = None
    if grid is not None:
        images = [importlib.import_module("PIL.Image").new("RGB", (28, 28)) for _ in prompts]
    whole = WholeModel(model, grid is not None)
    answers = generate(
        whole, _Numbers(grid, padding_side), images, prompts=texts, max_tokens=count, sampler=greedy
    )
    return [
        [
            Generated(token, every=step[row])
            for token, step in zip(_figures(text), steps, strict=False)
        ]
        for row, text in enumerate(answers.texts)
    ]


def _figures(text: str) -> list[int]:
    return [int(figure) for figure in text.split()]


class WholeModel:
    """A model without a vision part around a tiny language model."""

    no_chunked_prefill = False

    def __init__(self, model: LabModel, images: bool = False):
        self.model = model
        self.shell = None if images else shell(model)
        self.language_model = model.module if self.shell else TextOnly(model)
        self.config = config(model)

    def __call__(self, input_ids: Any, *_: Any, cache: Any = None, **__: Any) -> Any:
        """A prompt's logits: mlx-vlm before 0.3.10 calls the whole model."""
        return self.language_model(input_ids, cache=cache)

    def get_input_embeddings(
        self, input_ids: Any, pixel_values: Any = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        """The family's embeddings, or zeros with the language model's position ids.

        An image adds no features: the language model reads its tokens.
        """
        if self.shell is not None:
            return self.shell.get_input_embeddings(input_ids, pixel_values, mask=mask, **kwargs)
        base = self.model.family.part("models.base")
        own: dict[str, Any] = {}
        grid = kwargs.get("image_grid_thw")
        hands = own_positions(self.model) if hasattr(self.model.module, "get_rope_index") else 0
        if hands or grid is not None:
            index = self.model.module.get_rope_index
            own["position_ids"], own["rope_deltas"], *_ = index(
                input_ids, grid, attention_mask=mask
            )
        if not hands:
            self.model.module._position_ids = own.pop("position_ids", None)
            self.model.module._rope_deltas = own.pop("rope_deltas", None)
        return base.InputEmbeddingsFeatures(inputs_embeds=mx.zeros((*input_ids.shape, 1)), **own)


def shell(model: LabModel) -> Any:
    """The family's whole model with only the language model in it.

    None if it cannot compute the embeddings of a text.
    """
    import mlx.nn as nn

    kind = getattr(model.family.module(), "Model", None)
    if kind is None or not hasattr(kind, "get_input_embeddings"):
        return None
    tokens = [1, 2, 3]
    try:
        whole = kind.__new__(kind)
        nn.Module.__init__(whole)
        whole.language_model, whole.config = model.module, config(model)
        whole.model_type = model.family.name
        for part in PARTS:
            if not hasattr(whole, part):
                setattr(whole, part, None)
        own = embed_prompt(whole, tokens, {})
        out = model.module(mx.array([tokens]), cache=model.make_cache(), **own)
        mx.eval(getattr(out, "logits", out))
    except Exception:  # needs its vision part even for a text
        return None
    return whole


def config(model: LabModel) -> Any:
    """The language model's config, with the name of a family that has a chat format.

    Missing special tokens get ids beyond the vocabulary, so that no text contains them.
    """
    own = getattr(model.module, "config", None) or getattr(model.module, "args", None) or {}
    prompts = model.family.part("prompt_utils")
    name = model.family.name if model.family.name in prompts.MODEL_CONFIG else "qwen2_vl"
    marks = dict(zip(MARKS, range(model.vocabulary, 2 * model.vocabulary), strict=False))
    settings = own if isinstance(own, dict) else vars(own)
    return SimpleNamespace(**{**marks, **settings, "model_type": name})


class _Numbers:
    """A tokenizer, processor and detokenizer for texts of decimal token ids.

    There is no stop token.
    """

    pad_token = eos_token = "0"
    pad_token_id = eos_token_id = 0
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, grid: Any = None, padding_side: str = "left") -> None:
        self.chat_template = "figures"  # the releases look it up on the instance
        self.grid = grid
        self.side = padding_side
        self.tokens: list[int] = []
        self.stopping_criteria = Endless()

    def __call__(self, text: Any, images: Any = None, **options: Any) -> Any:
        """Token ids and their mask, both of shape (prompts, tokens), and the inputs of images."""
        rows = [read_ids(prompt) for prompt in text]
        longest = max(map(len, rows))
        ids, mask = [], []
        for row in rows:
            pad, real = [0] * (longest - len(row)), [1] * len(row)
            left = self.side == "left"
            ids.append(pad + row if left else row + pad)
            mask.append(pad + real if left else real + pad)
        inputs = {"input_ids": mx.array(ids), "attention_mask": mx.array(mask)}
        if images is None:
            return SimpleNamespace(**inputs)
        grids = mx.concatenate([self.grid] * len(images))
        return {**inputs, "pixel_values": mx.zeros((len(images), 1)), "image_grid_thw": grids}

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        """The messages as text, with unchanged token ids."""
        return str(messages)

    @property
    def detokenizer(self) -> "_Numbers":
        return self

    def reset(self) -> None:
        self.tokens = []

    def add_token(self, token: int, **options: Any) -> None:
        self.tokens.append(int(token))

    def finalize(self) -> None:
        """Do nothing: no text is buffered."""

    @property
    def text(self) -> str:
        return self.decode(self.tokens)

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return " ".join(map(str, tokens))


def read_ids(prompt: str) -> list[int]:
    """The token ids in a prompt, without the text that a chat template added."""
    found = _IDS.search(prompt)
    if found is None:
        raise NotApplicable("the release's chat template drops the prompt")
    return [int(figure) for figure in found[1].split()]
