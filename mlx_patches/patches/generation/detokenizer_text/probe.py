"""Streams a few tokens of a tiny tokenizer with the class of each repaired function."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from ....lab.streamed import difference, streams
from ....lab.tokenizers import ADDED, KINDS, LETTERS, TEKKEN, vocabulary, write
from ....probes.kit import NotApplicable, Result, Target, module_of, require_names

BYTE_LEVEL, PIECES = "byte-level", "sentencepiece"
# Stands for an id beyond the vocabulary.
PADDED = ""
SPACE = "\u2581"
BYTES_OWNER, PIECES_OWNER = "BPEStreamingDetokenizer", "SPMStreamingDetokenizer"
PIECES_END = f"{PIECES_OWNER}.finalize"
SERVER = "_ServerTokenStreamer"
# A kind of tokenizer, tokens as its vocabulary spells them, and their text.
Case = tuple[str, tuple[str, ...], str]
UNKNOWN_BYTES: Case = (BYTE_LEVEL, ("a", PADDED, "Ġit"), "a it")
CUT_BYTES: Case = (BYTE_LEVEL, ("a", LETTERS[0xF0], "Ġit"), "a\ufffd it")
UNKNOWN_PIECE: Case = (PIECES, ("a", PADDED, f"{SPACE}it"), "a it")
TWO_SPACES: Case = (PIECES, (SPACE, f"{SPACE}it", f"{SPACE}is"), " it is")
CASES: dict[str, tuple[Case, ...]] = {
    f"{BYTES_OWNER}.__init__": ((BYTE_LEVEL, (ADDED[1], "Ġit"), f"{ADDED[1]} it"),),
    f"{BYTES_OWNER}.add_token": (UNKNOWN_BYTES, CUT_BYTES),
    f"{BYTES_OWNER}._decode_bytes": ((BYTE_LEVEL, ("a", LETTERS[0]), "a\0"),),
    f"{BYTES_OWNER}._maybe_trim_space": ((BYTE_LEVEL, ("Ġit", "Ġis"), " it is"),),
    f"{BYTES_OWNER}.finalize": ((BYTE_LEVEL, ("a", LETTERS[0xF0]), "a"),),
    f"{PIECES_OWNER}.__init__": ((TEKKEN, ("Ġit", "Ġis"), " it is"),),
    f"{PIECES_OWNER}.add_token": (UNKNOWN_PIECE, TWO_SPACES),
    f"{PIECES_OWNER}._try_flush": (TWO_SPACES,),
    PIECES_END: ((PIECES, ("a", f"{SPACE}it", "<0xF0>"), "a it"),),
    "NaiveStreamingDetokenizer.finalize": (
        ("nested byte-level", ("a", "Ġcaf" + LETTERS[0xC3]), "a caf"),
    ),
    f"{SERVER}._emit_text": (TWO_SPACES,),
    f"{SERVER}._spm_text_for_token": ((PIECES, ("<0xE2>", "a", "<0x81>", "b"), "\ufffda\ufffdb"),),
}


def probe(target: Target) -> Result:
    """Red if a case is streamed wrongly, or raises."""
    owner = target.name.partition(".")[0]
    module = module_of(target)
    require_names(module, owner)
    if target.name == PIECES_END and not hasattr(module.SPMStreamingDetokenizer, "_flush_bytes"):
        raise NotApplicable("this release streams the bytes of a character as letters")
    for case in CASES[target.name]:
        if fault := describe_difference(target, owner, case):
            return Result(True, fault)
    return Result(False, "streamed as decoded")


def describe_difference(target: Target, owner: str, case: Case) -> str:
    """Describe how a case is streamed wrongly; empty if it is right."""
    from transformers import AutoTokenizer

    name, words, wanted = case
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), kind)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    way, owner = ("server", PIECES_OWNER) if owner == SERVER else ("generation", owner)
    detokenizer = getattr(module_of(target), owner)(tokenizer)
    own = SimpleNamespace(detokenizer=detokenizer, decode=tokenizer.decode)
    names = vocabulary(kind)
    tokens = [names.index(word) if word else len(names) for word in words]
    stream = dict(streams(target.distribution, own))[way]
    return difference(lambda tokens: wanted, {way: stream}, tokens)
