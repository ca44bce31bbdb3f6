from textwrap import dedent

import pytest

from mlx_patches.core import fingerprint

from .conftest import load

PLAIN = """
def f(x, y=1):
    z = x + y
    return [z, -1]
"""


def of(source, name="f", folder=None):
    path = folder / "sample.py"
    path.write_text(dedent(source))
    return fingerprint.hash_file(path, [name]).get(name)


@pytest.fixture
def hash_of(tmp_path):
    return lambda source, name="f": of(source, name, tmp_path)


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(
            'def f(x, y=1):\n    """Adds."""\n    z = x + y\n    return [z, -1]',
            id="docstring",
        ),
        pytest.param(
            "# one\ndef f(x, y=1):  # two\n    # three\n    z = x + y\n    return [z, -1]",
            id="comments",
        ),
        pytest.param(
            "def f(\n  x,\n  y = 1,\n):\n  z = (x\n    + y)\n  return [ z, -1, ]", id="formatting"
        ),
        pytest.param("import os\n\n\n\n" + PLAIN, id="position"),
        pytest.param("if True:\n    def f(x, y=1): z = x + y; return [z, -1]", id="depth"),
        pytest.param(PLAIN.replace("\n", "\r\n"), id="line ends"),
    ],
)
def test_layout_does_not_count(hash_of, same):
    assert hash_of(same) == hash_of(PLAIN) is not None


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("y=1", "y=2"),
        PLAIN.replace("-1", "1"),
        PLAIN.replace("x + y", "y + x"),
        PLAIN.replace("def f(x, y=1)", "def f(x, y)"),
        PLAIN.replace("def f(x, y=1)", "def f(x, *, y=1)"),
        PLAIN.replace("def f(x, y=1)", "def f(x: int, y=1)"),
        PLAIN.replace("def f", "async def f"),
        PLAIN.replace("def f", "@cache\ndef f"),
        PLAIN.replace("[z, -1]", "(z, -1)"),
        PLAIN.replace("    return [z, -1]", "    z\n    return [z, -1]"),
        PLAIN.replace("z = x + y", "z = x + y; 'a text that is no docstring'"),
        PLAIN.replace("[z, -1]", "[z, '-1']"),
    ],
)
def test_behaviour_counts(hash_of, other):
    assert hash_of(other) is not None
    assert hash_of(other) != hash_of(PLAIN)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("", "None"),
        ("1", "1.0"),
        ("1", "True"),
        ("0", "False"),
        ("None", "..."),
        ("''", "None"),
        ("b'a'", "'a'"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x}'", "f'{x:>1}'"),
        ("f'{x:>{y}}'", "f'{x:>{y}d}'"),
        ("'\\u00e9'", "'e\\u0301'"),
        ("{**a, 'b': 1}", "{'b': 1, **a}"),
    ],
)
def test_similar_values_differ(hash_of, one, other):
    assert hash_of(f"def f(): return {one}") != hash_of(f"def f(): return {other}")


# The same on every supported Python: computed once, on 3.13.
SAMPLES = {
    "plain": ("f3e669e8560b5152", PLAIN),
    "f-string": ("6dae3963ca736e3b", "def f(x, y): return f'{x!r:>{y}} {x=} {{}}' 'tail' f''"),
    "f-string, nested specs": (
        "dcb09c276a916f4f",
        "def f(x, y): return f'{x:{y}}{x:{y}.{y}f}{x:%H:%M}' f'{x:}'",
    ),
    "f-string, whole lines": ("67167118c48d4caf", 'def f(x):\n    return f"""a\n  {x = }\nb"""'),
    "match": (
        "d1feaa523620ca04",
        """
        def f(v):
            match v:
                case {"a": [1, *rest], **others} if rest:
                    return others
                case Point(x=0) | None:
                    return 1
                case _:
                    raise ValueError from None
        """,
    ),
    "walrus": ("b5c4c15c9b6ac01c", "def f(xs): return [y for x in xs if (y := x + 1) > 2]"),
    "type hints": (
        "3de0d9ec5d173c70",
        """
        def f(x: int | None, *args: "str", key: dict[str, list[int]] = {}) -> tuple[int, ...]:
            local: float = 1e-3
            bare: bool
            return x, local, args, key
        """,
    ),
    "async": (
        "2b1abf3aa3035ce3",
        """
        async def f(xs):
            async with xs as a, xs as b:
                return [await x async for x in a]
        """,
    ),
    "decorated": ("d3011e3c29c4cb9e", "@mod.deco(1, key='x')\n@other\ndef f(): yield from ()"),
    "lambda and defaults": (
        "a2abb78c08fff2d7",
        "def f(a, /, b, *c, d=lambda x=1, *y: x, **e): return d(*c, **e)",
    ),
    "try": (
        "55222d26ab75fa59",
        """
        def f():
            try:
                with a() as b, c():
                    del b[1:2, ...]
            except* (ValueError, OSError) as group:
                raise
            finally:
                global g
                g = 0x10 + 1_000j
        """,
    ),
    "texts": (
        "421a1a6c402b820b",
        "def f(): return 'caf\\u00e9', '\\U0001FAE8', b'\\x00', u'u', 'a' 'b'",
    ),
    "raw characters": ("cb474997acac2257", "def f(): return '\u00e9', '\U0001fae8', '\u200b'"),
    "nested": (
        "464dd582c9d857b1",
        "def f():\n    def inner():\n        'doc'\n        return 1\n    return inner",
    ),
    "only a docstring": ("c5c87d10c39d45b4", "def f(): 'doc'"),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_equal_on_every_python(hash_of, sample):
    known, source = SAMPLES[sample]
    assert hash_of(source) == known


LIVE = '''
import contextlib
import functools


def deco(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner


def function(x, y=1):
    """Doc."""
    return x + y


async def coroutine(x):
    return await x


if functools:
    def under_if(x):
        return x

try:
    import nothing_of_this_name
except ImportError:
    def under_except(x):
        return [
            x,
        ]


class A:
    """Doc."""

    def method(self, x):
        return x

    async def coroutine(self):
        return 1

    @property
    def read(self):
        return 1

    @property
    def both(self):
        """Doc."""
        return self._both

    @both.setter
    def both(self, value):
        self._both = value

    @both.deleter
    def both(self):
        del self._both

    @classmethod
    def of_class(cls):
        return cls()

    @staticmethod
    def of_none(x):
        return x

    @deco
    def decorated(self):
        return 1

    @deco
    @deco
    def twice(self):
        return 1

    @functools.lru_cache
    def cached(self):
        return 1

    @contextlib.contextmanager
    def context(self):
        yield 1

    def one_line(self): return 1

    def text(self):
        return """one
        two"""

    def text_to_the_margin(self):
        return """one
two"""

    def comment_at_the_margin(self):
# here
        return 1

    if True:
        def under_if(self):
            return 1

    class Inner:
        def method(self):
            return 2
'''
NAMES = [
    *("function", "coroutine", "under_if", "under_except", "A.method", "A.coroutine", "A.read"),
    *("A.both", "A.of_class", "A.of_none", "A.decorated", "A.twice", "A.cached", "A.context"),
    *("A.one_line", "A.text", "A.text_to_the_margin", "A.comment_at_the_margin", "A.under_if"),
    "A.Inner.method",
]


def attribute(module, name):
    for part in name.split("."):
        module = vars(module)[part]
    return module


@pytest.mark.parametrize("name", NAMES)
def test_object_equals_file(site, name):
    path = site.write("pk.py", LIVE)
    live = fingerprint.hash_object(attribute(load("pk"), name))
    assert live == fingerprint.hash_file(path, [name])[name] is not None


def test_wrappers_and_accessors(site):
    site.write("pk.py", LIVE)
    module = load("pk")
    assert fingerprint.hash_object(module.deco(module.A.method)) == fingerprint.hash_object(
        module.A.method
    )

    site.write("pk.py", LIVE)
    both = load("pk").A.both
    prints = [
        fingerprint.hash_object(one)
        for one in (both, property(both.fget), property(both.fget, both.fset))
    ]
    assert len(set(prints)) == 3


def test_no_source():
    scope = {}
    exec("def f(): return 1", scope)
    assert fingerprint.hash_object(scope["f"]) is None
    assert fingerprint.hash_object(len) is None
    assert fingerprint.hash_object(property(len)) is None
    assert fingerprint.hash_object(property()) is None
    assert fingerprint.hash_object(3) is None


def test_missing_names_and_files(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(PLAIN)
    assert set(fingerprint.hash_file(path, ["f", "g", "f.g", "F.f"])) == {"f"}
    path = tmp_path / "sample.py"
    path.write_text("def f(:\n")
    with pytest.raises(SyntaxError):
        fingerprint.hash_file(path, ["f"])
    with pytest.raises(OSError):
        fingerprint.hash_file(tmp_path / "none.py", ["f"])


def test_several_bodies():
    assert fingerprint.combine({"f": "0123"}) == "0123"
    made = {fingerprint.combine({"f": f * 16, "g": g * 16}) for f in "ab" for g in "ab"}
    assert len(made) == 4
    assert {len(one) for one in made} == {16}
    assert not made & {"a" * 16, "b" * 16}
    assert fingerprint.combine({"f": "a", "g": None}) is None
    assert fingerprint.combine({"f": None}) is None
