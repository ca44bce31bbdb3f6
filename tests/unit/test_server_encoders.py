"""The lab of encoder endpoints: a correct server is right, and planted faults are seen."""

import base64
import contextlib
import json
import threading
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.lab.server import encoders
from mlx_patches.lab.server.client import EMBEDDINGS, ENCODERS, RERANK, Client
from mlx_patches.lab.server.measure import cells_of


@contextlib.contextmanager
def serving(fault=""):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = respond(self.path, body, fault)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def respond(path, body, fault):
    texts = body["documents"] if "documents" in body else body["input"]
    texts = [texts] if isinstance(texts, str) else texts
    if fault == "long" and any(len(text.split()) > encoders.LIMIT for text in texts):
        return 500, {"error": "broadcast"}
    if fault == "refused":
        return 422, {"error": "none of it"}
    if fault == "padded":
        width = max(len(text.split()) for text in texts)
        texts = [
            " ".join([*text.split(), *["[PAD]"] * (width - len(text.split()))]) for text in texts
        ]
    if path.endswith("rerank"):
        scores = [encoders.score(text) for text in texts]
        if fault == "types":
            scores = [1 / (1 + len(text)) for text in texts]
        order = sorted(range(len(texts)), key=scores.__getitem__, reverse=True)
        order = order if fault == "top_n" else order[: body.get("top_n")]
        return 200, {"results": [{"index": n, "relevance_score": scores[n]} for n in order]}
    size = encoders.SIZE if fault == "dimensions" else body.get("dimensions", encoders.SIZE)
    vectors = [encoders.embed(text, size) for text in texts]
    if fault == "empty":
        vectors = [v if t else [0.0] * size for v, t in zip(vectors, texts, strict=True)]
    if fault == "swapped":
        vectors.reverse()
    if body.get("encoding_format") == "base64" and fault != "encoding_format":
        vectors = [base64.b64encode(array("f", one).tobytes()).decode() for one in vectors]
    return 200, {"data": [{"index": n, "embedding": one} for n, one in enumerate(vectors)]}


def verdicts(fault=""):
    with serving(fault) as url:
        client = Client(url, "")
        cells = [encoders.measure(client, "m", *key) for key in encoders.list_cells([*ENCODERS])]
    return {cell.key: cell.verdict for cell in cells if cell.verdict != "right"}


def test_correct_server_is_right_everywhere():
    assert verdicts() == {}


BESIDE = "beside longer texts"


@pytest.mark.parametrize(
    ("fault", "key", "verdict"),
    [
        ("padded", (EMBEDDINGS, "text", BESIDE), "wrong"),
        ("padded", (RERANK, "text", BESIDE), "wrong"),
        ("swapped", (EMBEDDINGS, "text", BESIDE), "wrong"),
        ("empty", (EMBEDDINGS, "empty text", BESIDE), "wrong"),
        ("long", (EMBEDDINGS, "text over the limit", BESIDE), "wrong"),
        ("types", (RERANK, "text", "solo"), "wrong"),
        ("dimensions", (EMBEDDINGS, "dimensions", "solo"), "ignored"),
        ("encoding_format", (EMBEDDINGS, "encoding_format", "solo"), "ignored"),
        ("top_n", (RERANK, "top_n", "solo"), "ignored"),
        ("refused", (EMBEDDINGS, "text", "solo"), "refused"),
    ],
)
def test_fault_is_seen(fault, key, verdict):
    assert verdicts(fault)[key] == verdict


def test_document_is_cut_at_the_limit():
    assert len(encoders.encode(encoders.QUERY, encoders.LONG)) == encoders.LIMIT
    assert encoders.score(encoders.LONG) == encoders.score(encoders.LONG + " a")


def test_unknown_parameter_is_one_line():
    with pytest.raises(
        MlxPatchesError, match=r"^--scenario top_p: the matrix has no such parameter$"
    ):
        list(cells_of("serve {encoder} {port}", False, ["top_p"]))


def test_command_without_a_port_is_one_line():
    with pytest.raises(MlxPatchesError, match=r"^--server: the command needs \{port\}: serve"):
        list(cells_of("serve {encoder}", False))
