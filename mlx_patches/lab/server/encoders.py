"""The endpoints of encoders, ``/v1/embeddings`` and ``/v1/rerank``, with known vectors and scores.

The model is a tiny BERT with random embeddings. Its attention is uniform and its feed-forward layer
adds nothing, so that a text's vector is a mean of sums; see ``encode``.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from ...evidence.requests import IGNORED, REFUSED, RIGHT, WRONG
from .client import EMBEDDINGS, RERANK, Answer, Client
from .folder import Tensors, write_tensors
from .runner import Key, check_names
from .table import Cell

# The limit of published BERT models, which some servers have as their own.
SIZE, LIMIT = 16, 512
MARKS = PAD, FIRST, LAST, OTHER = "[PAD]", "[CLS]", "[SEP]", "[UNK]"
WORDS = tuple("abcdefghijkl")
VOCABULARY = (*MARKS, *WORDS)
TEXTS = ("a b c", " ".join(WORDS + WORDS[:9]), "d", "e f g h i j")
LONG = " ".join(WORDS * 50)
CLOSE = 1e-3
# The fields of a request, by parameter and context; a list of texts is sent as it is.
SENT: dict[str, dict[str, dict[str, Any]]] = {
    "text": {
        "solo": {"texts": TEXTS[0]},
        "beside longer texts": {"texts": TEXTS},
        "several at once": {"texts": TEXTS, "apart": True},
    },
    "empty text": {"beside longer texts": {"texts": ("", TEXTS[0])}},
    "text over the limit": {"beside longer texts": {"texts": (LONG, TEXTS[0])}},
}
MORE: dict[str, dict[str, dict[str, Any]]] = {
    EMBEDDINGS: {
        "encoding_format": {"solo": {"texts": TEXTS, "encoding_format": "base64"}},
        "dimensions": {"solo": {"texts": TEXTS, "dimensions": SIZE // 2}},
    },
    RERANK: {"top_n": {"solo": {"texts": TEXTS, "top_n": 2}}},
}
QUERY = "k l a"
# The tables of embeddings that a token's vector is the sum of, and their rows.
TABLES = {"word": len(VOCABULARY), "position": LIMIT, "token_type": 2}
Rows = list[list[float]]


@cache
def table(name: str, rows: int) -> Rows:
    """Random vectors of a table of embeddings; deterministic."""
    draw = random.Random(name)
    return [[draw.gauss(0, 1) for _ in range(SIZE)] for _ in range(rows)]


def encode(*texts: str) -> Rows:
    """The hidden states of a text, or of a pair, that is cut at the limit."""
    tokens, types = [FIRST], [0]
    for kind, text in enumerate(texts):
        room = LIMIT - len(tokens) - len(texts) + kind
        words = [*text.split()[:room], LAST]
        tokens += words
        types += [kind] * len(words)
    tables = [table(name, count) for name, count in TABLES.items()]
    places = zip(map(VOCABULARY.index, tokens), range(len(tokens)), types, strict=True)
    rows = [
        normalize(map(sum, zip(*(t[i] for t, i in zip(tables, place, strict=True)), strict=True)))
        for place in places
    ]
    middle = mean(rows)
    return [normalize(normalize(map(sum, zip(row, middle, strict=True)))) for row in rows]


def normalize(row: Iterable[float]) -> list[float]:
    """LayerNorm without weights."""
    row = [*row]
    centre = sum(row) / SIZE
    spread = math.sqrt(sum((one - centre) ** 2 for one in row) / SIZE)
    return [(one - centre) / spread for one in row]


def mean(rows: Rows) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def embed(text: str, size: int = SIZE) -> list[float]:
    """The vector of a text, of norm 1."""
    vector = mean(encode(text))[:size]
    norm = math.hypot(*vector)
    return [one / norm for one in vector]


def score(document: str) -> float:
    """The relevance of a document to the query, from 0 to 1."""
    first = encode(QUERY, document)[0]
    logit = sum(w * math.tanh(x) for w, x in zip(table("score", 1)[0], first, strict=True))
    return 1 / (1 + math.exp(-logit))


def save(folder: Path, endpoint: str) -> None:
    """Write the encoder as a model folder."""
    folder.mkdir(parents=True)
    scores = endpoint == RERANK
    files = {
        "config": {
            "model_type": "bert",
            "architectures": ["BertForSequenceClassification" if scores else "BertModel"],
            "vocab_size": len(VOCABULARY),
            "max_position_embeddings": LIMIT,
            **dict.fromkeys(("hidden_size", "intermediate_size"), SIZE),
            **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1),
            "layer_norm_eps": 1e-12,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "pad_token_id": 0,
            **({"num_labels": 1, "id2label": {"0": "score"}} if scores else {}),
        },
        "tokenizer": {
            "version": "1.0",
            "added_tokens": [
                {"id": number, "content": mark, "special": True}
                | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
                for number, mark in enumerate(MARKS)
            ],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {"type": "BertProcessing", "cls": [FIRST, 1], "sep": [LAST, 2]},
            "model": {
                "type": "WordLevel",
                "vocab": {word: number for number, word in enumerate(VOCABULARY)},
                "unk_token": OTHER,
            },
        },
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), MARKS, strict=True)),
        },
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    write_tensors(folder / "model.safetensors", _weights(scores))


def _weights(scores: bool) -> Tensors:
    """Values pass through, queries, keys and the feed-forward layer are zero."""
    layer = "encoder.layer.0."
    identity = [[float(i == j) for j in range(SIZE)] for i in range(SIZE)]
    zeros = [[0.0] * SIZE] * SIZE
    kept = ("attention.self.value", "attention.output.dense")
    empty = ("attention.self.query", "attention.self.key", "intermediate.dense", "output.dense")
    rows = {f"{layer}{name}.weight": identity for name in kept}
    rows |= {f"{layer}{name}.weight": zeros for name in empty}
    rows["pooler.dense.weight"] = identity
    vectors = {name.replace("weight", "bias"): [0.0] * SIZE for name in rows}
    for name, count in TABLES.items():
        rows[f"embeddings.{name}_embeddings.weight"] = table(name, count)
    for name in ("embeddings", f"{layer}attention.output", f"{layer}output"):
        vectors |= {
            f"{name}.LayerNorm.weight": [1.0] * SIZE,
            f"{name}.LayerNorm.bias": [0.0] * SIZE,
        }
    before = "bert." if scores else ""
    tensors: Tensors = {
        before + name: ((len(one), SIZE), array("f", itertools.chain(*one)))
        for name, one in rows.items()
    }
    tensors |= {before + name: ((len(one),), array("f", one)) for name, one in vectors.items()}
    if scores:
        tensors["classifier.weight"] = ((1, SIZE), array("f", table("score", 1)[0]))
        tensors["classifier.bias"] = ((1,), array("f", [0.0]))
    return tensors


def list_cells(endpoints: Sequence[str], only: Sequence[str] = ()) -> list[Key]:
    """The endpoint, parameter and context of each cell.

    Raises:
        MlxPatchesError: ``only`` has an unknown parameter.
    """
    rows = {endpoint: SENT | MORE[endpoint] for endpoint in endpoints}
    check_names(only, itertools.chain(*rows.values()))
    return [
        (endpoint, parameter, context)
        for endpoint, parameters in rows.items()
        for parameter, contexts in parameters.items()
        for context in contexts
        if not only or parameter in only
    ]


def measure(client: Client, model: str, endpoint: str, parameter: str, context: str) -> Cell:
    """Send a cell's texts, and judge the vectors or scores."""
    fields = dict((SENT | MORE[endpoint])[parameter][context])
    texts, apart = fields.pop("texts"), fields.pop("apart", False)
    groups = [[one] for one in texts] if apart else [[texts] if isinstance(texts, str) else texts]

    def send(group: Sequence[str]) -> Answer:
        if endpoint == RERANK:
            body = {"query": QUERY, "documents": group}
        else:
            body = {"input": texts if isinstance(texts, str) else group}
        return client.post(endpoint, json.dumps({"model": model, **body, **fields}).encode())

    with ThreadPoolExecutor(len(groups)) as pool:
        answers = [*pool.map(send, groups)]
    verdict, detail = RIGHT, ""
    for group, answer in zip(groups, answers, strict=True):
        if answer.status != 200:
            verdict, detail = REFUSED if answer.refused else WRONG, answer.error
        elif fault := judge(endpoint, group, answer, fields):
            verdict, detail = WRONG if judge(endpoint, group, answer, {}) else IGNORED, fault
    return Cell(endpoint, parameter, context, verdict, detail)


def judge(endpoint: str, texts: Sequence[str], answer: Answer, fields: Mapping[str, Any]) -> str:
    """The fault of an answer's vectors or scores."""
    got = answer.vectors
    if answer.text != fields.get("encoding_format", answer.text):
        return f"an answer in {answer.text}, not in {fields['encoding_format']}"
    if endpoint == RERANK:
        want = {number: [score(text)] for number, text in enumerate(texts)}
        best = sorted(want, key=want.__getitem__, reverse=True)[: fields.get("top_n")]
        want = {number: want[number] for number in best}
        if [*got] != [*want]:
            return f"the documents are {[*got]}, not {[*want]}"
    else:
        size = fields.get("dimensions", SIZE)
        want = {number: embed(text, size) for number, text in enumerate(texts)}
    for number, vector in want.items():
        mine = got.get(number, [])
        if len(mine) != len(vector):
            return f"text {number + 1} has {len(mine)} numbers, not {len(vector)}"
        off = max(abs(one - other) for one, other in zip(mine, vector, strict=True))
        if not off <= CLOSE:
            return f"text {number + 1} is off by {off:.2g}"
    return ""
