import pytest

from mlx_patches.patches import catalogue
from mlx_patches.probes.fixtures import own_class_of

from ..releases.conftest import is_installed
from ..releases.models import or_skip

pytestmark = pytest.mark.skipif(not is_installed("mlx-lm"), reason="tests of mlx-lm")
PATCH = catalogue.builtin().get("server-prefix-hit")


@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
@or_skip()
def test_other_objects_pass_through(target, ungated):
    prompts = own_class_of(target)()
    manager = ungated("server-prefix-hit")
    try:
        prompts.insert_cache("model", [1, 2], ["no cache"])
    except AttributeError:
        pytest.skip("this release keeps nothing but caches")
    assert prompts.fetch_nearest_cache("model", [1, 2]) == (["no cache"], [])
    assert all(outcome.status != "failed" for outcome in manager.status())
