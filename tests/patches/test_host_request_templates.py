import pytest

from mlx_patches.core.errors import is_refusal
from mlx_patches.patches.server.host_request_templates import patch


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"chat_template": "x"}, "chat_template"),
        ({"extra_body": {"chat_template": "x"}}, "extra_body.chat_template"),
        ({"chat_template_kwargs": {"chat_template": ""}}, "chat_template_kwargs.chat_template"),
        (
            {"extra_body": {"chat_template_kwargs": {"tokenize": False}}},
            "extra_body.chat_template_kwargs.tokenize",
        ),
        ({"chat_template_kwargs": {"conversation": []}}, "chat_template_kwargs.conversation"),
        ({"chat-template": "x"}, "chat-template"),
    ],
)
def test_template_is_refused(body, field, caplog):
    with pytest.raises(ValueError, match="a request may not set it") as refused:
        patch.check_body({"messages": [], **body})
    assert is_refusal(refused.value)
    assert field in str(refused.value)
    assert "host-request-templates refused" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"chat_template": None},
        {"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
        {"messages": [{"role": "user", "content": {"chat_template": "x"}}]},
        {"tools": [{"function": {"parameters": {"chat_template": {}}}}]},
        [1],
        "text",
    ],
)
def test_other_fields_are_passed_on(body):
    patch.check_body(body)
