"""Validates with a schema that refers to a file, as vllm-mlx validates structured output."""

import asyncio
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ....probes.kit import Result, Target, read_body, require, require_module

# A call as code of vllm-mlx makes it.
_CALL = "lambda jsonschema, data, schema: jsonschema.validate(instance=data, schema=schema)"


def probe(target: Target) -> Result:
    """Red if the file is read, or if the body with the schema is passed on."""
    require(target)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "secret.json"
        file.write_text('{"const": "secret"}')
        if target.distribution == "starlette":
            return _read(file.as_uri())
        # Relative to an `$id`: the check of the body passes it on.
        return _validate({"$id": f"{file.parent.as_uri()}/x", "$ref": file.name})


def _validate(schema: dict[str, Any]) -> Result:
    jsonschema: Any = require_module("jsonschema")
    validate = eval(_CALL, {"__name__": "vllm_mlx.probe"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            validate(jsonschema, 1, schema)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return Result("'secret'" in text, text[:200])
    return Result(False, "the schema has no effect")


def _read(url: str) -> Result:
    module: Any = require_module("starlette.requests")
    body = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": url}}}}
    try:
        asyncio.run(read_body(module.Request, "vllm_mlx.server", body))
    except ValueError as error:
        return Result(False, str(error))
    return Result(True, "the schema is passed on")
