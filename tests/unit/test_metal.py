import pytest

from mlx_patches.auditing import modules, screen
from mlx_patches.auditing.audit import Audit, ModelReport
from mlx_patches.auditing.verdict import Measured, ModelVerdict, judge
from mlx_patches.evidence import store

PACKAGE = "mlx_lm.models"
ASKED = "import mlx.core as mx\n"
KERNEL = f"""{ASKED}
def step(x):
    return x if not mx.metal.is_available() else mx.abs(x)

def other(x):
    return x
"""


@pytest.fixture
def write(site):
    site.write("mlx_lm/models/cache.py", "class KVCache:\n    pass\n")

    def write(name, text):
        return site.write(f"mlx_lm/models/{name}.py", text)

    return write


def find_branches(family="a"):
    return modules.metal_branches(PACKAGE, family)


OWN = (
    "def f():\n    return mx.metal.is_available()",
    "class Model:\n    def f(self):\n        return 1 if mx.default_device() == mx.gpu else 2",
    "f = mx.fast.metal_kernel(name='f')",
    "if mx.metal.is_available():\n    def f():\n        pass",
    "try:\n    HAS = mx.metal.is_available()\nexcept Exception:\n    HAS = False",
)
IMPORTED = (
    "from .kernel import step\ndef f(x):\n    return step(x)",
    "from . import kernel\ndef f(x):\n    return kernel.step(x)",
    "import mlx_lm.models.kernel as k\ndef f(x):\n    return k.step(x)",
    "def f(x):\n    from mlx_lm.models.kernel import step as s\n    return s(x)",
    "from .kernel import *\ndef f(x):\n    return step(x)",
    "from .between import again\nclass Model:\n    def f(self, x):\n        return again(x)",
)
NONE = (
    "stream = mx.new_stream(mx.default_device())",
    "def f(files):\n    return files.is_available()",
    "# mx.metal.is_available()\n'mx.fast.metal_kernel'",
    "from .kernel import other\ndef f(x):\n    return other(x)",
    "from .kernel import step",
    "from .kernel import step\ndef f(x):\n    return isinstance(x, step)",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (text, where)
        for where, texts in (("a", OWN), ("kernel", IMPORTED), ("", NONE))
        for text in texts
    ],
)
def test_metal_branches(write, text, expected):
    write("kernel", KERNEL)
    write("between", "from .kernel import step\ndef again(x):\n    return step(x)")
    write("a", ASKED + text)
    assert find_branches() == ((expected,) if expected else ())


def test_processors_are_not_the_model(site, write):
    site.write("mlx_lm/models/a/__init__.py", "from .language import Model\n")
    site.write("mlx_lm/models/a/language.py", "class Model:\n    pass\n")
    site.write("mlx_lm/models/a/processing_a.py", KERNEL)
    assert find_branches() == ()
    site.write("mlx_lm/models/a/vision.py", KERNEL)
    modules._read.cache_clear()
    assert find_branches() == ("a.vision",)


def test_engine_is_not_the_model(site, write):
    site.write("mlx_lm/generate.py", KERNEL)
    write("a", "from ..generate import step\ndef f(x):\n    return step(x)")
    assert find_branches() == ()


def test_circular_modules(write):
    write("a", "from .b import g\ndef f():\n    g()")
    write("b", "from .a import f, h\ndef g():\n    f()\n    h()")
    assert find_branches() == ()


def test_invalid_or_missing_file(write):
    write("a", "from .gone import f\nfrom .broken import g\ndef h():\n    f(g())")
    write("broken", "def (")
    assert find_branches() == ()
    assert find_branches("nothing") == ()


def test_every_set_was_read():
    """Update with tools/mark_code.py, run by the Python of the release's environment."""
    for one in store.load():
        name, version = one["set"].split()
        marks = store.metal_branches(f"{name} {version}")
        assert marks is not None, one["set"]
        assert marks, one["set"]


def report_of(*verdicts, model="qwen3_5"):
    asked = ModelReport(model, None, {}, True) if model else None
    return Audit((), (), (), {}, False, model=asked, verdicts=verdicts)


def test_screen_names_metal_branches():
    evidence = store.load_set("mlx-lm 0.32.2")
    marks = store.metal_branches("mlx-lm 0.32.2")
    branch = judge(Measured(evidence, metal=(*marks["qwen3_5"],)), "mlx-lm", "0.32.2", "qwen3_5")
    plain = judge(Measured(evidence), "mlx-lm", "0.32.2", "qwen3")
    assert branch.measured.metal == ("gated_delta",)
    assert branch.as_dict(report_of().here())["metal_branches"] == ["gated_delta"]
    first = "Measured on a CPU and CUDA; it has Metal-only code."
    run = "emulated on a CPU."
    assert screen.describe_places(report_of(branch)).splitlines() == [first, f"That code was {run}"]
    places = "Measured on a CPU (float32, bfloat16) and CUDA (float32); not on Metal."
    assert screen.describe_places(report_of(plain)) == places
    strange = ModelVerdict("new", "mlx-lm", "9.9", "", Measured(metal=("ssm",)))
    assert screen.describe_places(report_of(strange)) == ("Not measured; it has Metal-only code.")
    both = screen.describe_places(report_of(branch, plain, model=""))
    one = "Measured on a CPU and CUDA; 1 family has Metal-only code."
    assert both.splitlines() == [one, f"1 of them was {run}"]
    assert screen.describe_places(report_of(plain, model="")) == places
    assert all(len(text) <= screen.WIDTH for text in (first, *both.splitlines(), places))
