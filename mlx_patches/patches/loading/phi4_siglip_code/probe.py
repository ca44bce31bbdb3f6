"""Loads a folder's processor as hosts do, and records the arguments of the tokenizer's load."""

import tempfile
from contextlib import suppress
from unittest import mock

from ....probes.kit import Result, Target, require


class _Stopped(Exception):
    """Raised in place of loading the tokenizer."""


def probe(target: Target) -> Result:
    """Red if the tokenizer is loaded with permission to run the folder's code."""
    from transformers import AutoTokenizer

    load = require(target)
    with (
        mock.patch.object(AutoTokenizer, "from_pretrained", side_effect=_Stopped) as recorded,
        tempfile.TemporaryDirectory() as folder,
        suppress(_Stopped),
    ):
        load(folder, trust_remote_code=True)
    trusted = bool(recorded.call_args.kwargs.get("trust_remote_code"))
    return Result(trusted, f"the tokenizer is {'' if trusted else 'not '}allowed to run code")
