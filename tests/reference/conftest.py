"""The fixtures of the tests against transformers."""

from ..releases.conftest import ungated  # noqa: F401
