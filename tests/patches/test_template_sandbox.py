import os
import time
from types import SimpleNamespace

import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.loading.template_sandbox import bounds, environment, patch

jinja2 = pytest.importorskip("jinja2")

DOUBLED = "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = STEP %}{% endfor %}"
STOPPED = {
    "attribute": "{{ cycler.__init__.__globals__.os.sep }}",
    "format": "{{ '{0.__class__.__mro__}'.format(5) }}",
    "map": "{{ [cycler]|map(attribute='__init__.__globals__')|list }}",
    "frame": "{{ ([1]|map('string')).gi_frame.f_back }}",
    "append": "{{ messages.append(2) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(30) %}x{% endfor %}{% endfor %}",
    "range": "{% for a in range(10**12) %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "times": "{{ 'x' * 10**10 }}",
    "power": "{{ 10 ** (10**10) }}",
    "center": "{{ 'x'|center(10**10) }}",
    "width": "{{ '%0999999999d' % 1 }}",
    "format width": "{{ '{:>9999999999}'.format(1) }}",
    "join": "{{ range(99999)|join('x' * 100000) }}",
    "indent": "{{ [1]|tojson(indent=10**10) }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "block": "{% set x %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}",
    **{step: DOUBLED.replace("STEP", step) for step in ("n.x ~ n.x", "[n.x, n.x]", "(n.x, n.x)")},
}
# Templates and their text in plain jinja2.
SAME = (
    "{% for m in messages %}\n  {{ m.role ~ ': ' ~ m['content'] }}\n{% endfor %}",
    "{{ messages|tojson(indent=2) }}{{ '<&>'|tojson }}{{ [1, 2.5, none]|string }}",
    "{% set n = namespace(a=1) %}{% for i in range(3) %}{% set n.a = n.a * 2 %}{% endfor %}{{ n }}",
    "{% macro m(x) %}<{{ x }}{{ varargs }}>{% endmacro %}{{ m(1, 2) }}{{ '%05d' % 7 }}",
    "{% filter upper %}{% for k, v in {'a': 1}.items() %}{{ k, v }}{% endfor %}{% endfilter %}",
)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def sandboxed(monkeypatch):
    """jinja2 with the patch, for each caller."""
    original = jinja2.Environment.from_string
    monkeypatch.setattr(patch, "is_chat_template", lambda: True)
    monkeypatch.setattr(bounds, "SECONDS", 0.5)
    monkeypatch.setattr(
        jinja2.Environment,
        "from_string",
        lambda *args, **kwargs: patch.compile_in_sandbox(original, *args, **kwargs),
    )


@pytest.mark.parametrize("name", STOPPED)
def test_template_is_stopped(sandboxed, name, caplog):
    started = time.thread_time()
    with pytest.raises(ValueError, match="The chat template was stopped: ") as stopped:
        jinja2.Template(STOPPED[name]).render(messages=MESSAGES)
    assert is_refusal(stopped.value)
    assert isinstance(stopped.value, jinja2.exceptions.SecurityError)
    assert "\n" not in str(stopped.value)
    assert "template-sandbox" in caplog.text
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("options", [{}, {"trim_blocks": True, "lstrip_blocks": True}])
@pytest.mark.parametrize("source", SAME)
def test_correct_template_is_unchanged(source, options, request):
    plain = jinja2.Template(source, **options).render(messages=MESSAGES)
    request.getfixturevalue("sandboxed")
    template = jinja2.Template(source, **options)
    assert isinstance(template.environment, environment.Bounds)
    assert template.render(messages=MESSAGES) == plain
    assert "".join(template.generate(messages=MESSAGES)) == plain


def test_other_packages_compile_as_before():
    assert not patch.is_chat_template()
    check = "lambda is_chat_template: is_chat_template()"
    for module in ("mlx_vlm.models.kimi_vl", "transformers.utils", "rapid_mlx.x"):
        assert eval(check, {"__name__": module})(patch.is_chat_template)
    assert not eval(check, {"__name__": "torch._inductor"})(patch.is_chat_template)


# The processors of mlx-vlm that compile chat templates themselves.
PROCESSORS = {
    "ernie4_5_moe_vl": "processing_ernie4_5_moe_vl",
    "kimi_vl": "processing_kimi_vl",
    "locateanything": "processing_locateanything",
    "molmo": "processing_molmo",
    "molmo2": "processing",
    "phi3_v": "processing_phi3_v",
}


@pytest.mark.parametrize("family", PROCESSORS)
def test_processors_render_in_sandbox(family, monkeypatch):
    """In unpatched jinja2 the same call reads the attribute."""
    module = pytest.importorskip(f"mlx_vlm.models.{family}.{PROCESSORS[family]}")
    [kind] = [
        one
        for one in vars(module).values()
        if getattr(one, "__module__", "") == module.__name__ and "apply_chat_template" in vars(one)
    ]

    def render(source):
        processor = object.__new__(kind)
        processor.chat_template = source
        processor.tokenizer = SimpleNamespace(chat_template=source, bos_token="", eos_token="")
        return processor.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)

    assert render(STOPPED["attribute"]) == os.sep
    original = jinja2.Environment.from_string
    # A layer is a function of the package, which the patch skips to find the release's code.
    layer = eval(
        "lambda *args, **kwargs: compile_in_sandbox(original, *args, **kwargs)",
        {"__name__": patch.__name__, "original": original} | vars(patch),
    )
    monkeypatch.setattr(jinja2.Environment, "from_string", layer)
    with pytest.raises(ValueError, match="The chat template was stopped: ") as stopped:
        render(STOPPED["attribute"])
    assert is_refusal(stopped.value)
    assert render("{{ messages[0].role }}") == "user"
