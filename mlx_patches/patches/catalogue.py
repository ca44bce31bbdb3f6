"""The built-in patches: a folder each, found by ``make write``, which lists them in a table.

The table has each patch's place and targets, so that start-up imports only the patches that it puts
in effect. A patch of a distribution that is not installed is never imported.
"""

import json
from pathlib import Path

from ..core.errors import MlxPatchesError
from ..core.files import quote, read_packaged
from ..core.registry import Registry

DECLARATIONS = Path(__file__).parent / "declarations.json"


def builtin() -> Registry:
    try:
        rows = json.loads(read_packaged(DECLARATIONS))
        [row["place"] for row in rows.values()]
        return Registry(rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = quote(f"{type(error).__name__}: {error}")
    raise MlxPatchesError(f"{DECLARATIONS}: {problem}: reinstall mlx-patches")
