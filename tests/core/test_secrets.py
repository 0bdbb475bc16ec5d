"""Secrets: none survives, however it is spelt, and ordinary text is left alone."""

from __future__ import annotations

import io
import json
import logging
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.secrets import KnownSecrets, RedactingFormatter, RedactingStream, is_secret_name, redact, redact_text

ALNUM = "A1b2C3d4E5f6G7h8J9k0L1m2N3p4Q5r6S7t8"
secret_names = st.sampled_from(
    ["api_key", "wandb_token", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "password", "credentials", "Authorization"]
)
secret_values = st.text(st.characters(codec="utf-8")).map(lambda text: f"z§'{text}\\zq")
"""Long enough to be hidden, and no part of what stands around them."""


def test_text_under_secret_keys_is_hidden_at_any_depth() -> None:
    config = {
        "api_key": "sk-1",
        "loggers": [{"init_args": {"wandb_token": "t", "project": "p"}}],
        "env": {"HF_TOKEN": "hf_1", "AWS_SECRET_ACCESS_KEY": "a", "MY_KEY": "m", "HOME": "/h"},
        "headers": {"Authorization": "Bearer x"},
        "api_keys": ["one", "two"],
        "credentials": {"user": "u", "port": 5},
        "passwords": {"db": 123},
        "password": 123,
        "tokens": 5,
        "max_new_tokens": 6,
        "use_password": True,
        "secret": "",
        "sizes": (1, 2),
    }
    assert redact(config) == {
        "api_key": "***",
        "loggers": [{"init_args": {"wandb_token": "***", "project": "p"}}],
        "env": {"HF_TOKEN": "***", "AWS_SECRET_ACCESS_KEY": "***", "MY_KEY": "***", "HOME": "/h"},
        "headers": {"Authorization": "***"},
        "api_keys": ["***", "***"],
        "credentials": {"user": "***", "port": 5},
        "passwords": {"db": 123},
        "password": "***",
        "tokens": 5,
        "max_new_tokens": 6,
        "use_password": True,
        "secret": "",
        "sizes": [1, 2],
    }
    assert config["api_key"] == "sk-1"


@pytest.mark.parametrize(
    "name",
    ["eos_token", "pad_token", "additional_special_tokens", "stop_tokens", "max_new_tokens", "num_tokens", "answer_key",
     "prompt_key", "tokenizer", "monkey", "keys", "stop_token_ids", "key", "PWD", "HOME"],
)  # fmt: skip
def test_names_of_the_field_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "HF_TOKEN", "WANDB_API_KEY", "apikey", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN",
     "DB_PASSWORD", "client_secret", "STRIPE_KEY", "GITHUB_PAT", "private-key", "wandbApiKey"],
)  # fmt: skip
def test_names_that_hold_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    ["tokens: 5", "max_new_tokens=256", "--rollout.sampling.max_new_tokens 6", "4096 tokens/s", "token 17 of 20",
     "risk-assessment-of-everything-new", "task-abcdefghijklmnopqrstuvwx", "hf_hub_download(repo_id)", "sk-learn",
     "http://127.0.0.1:8000/v1?max_tokens=5", "ssh://git@github.com/a/b", "The password is wrong.", "a = b & c ? d : e",
     "Authorization is required", "the bearer of good news", "commit 9f2c1b7d0e5a4c3b2a1908f7e6d5c4b3a2918070",
     "HIGHLIGHTS", "package:areal_lit_recipes/quickstart_model", "5 ** 2 *** 3", "Say 'hf_' or 'ghp_'."],
)  # fmt: skip
def test_ordinary_text_is_untouched(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("before", "secret", "after"),
    [
        ("token ", f"hf_{ALNUM[:34]}", "."),
        ("key='", f"sk-{ALNUM}", "'"),
        ("", f"sk-proj-{ALNUM}-_x", ""),
        ("", f"sk-ant-api03-{ALNUM}", ""),
        ("(", f"ghp_{ALNUM}", ")"),
        ("", f"github_pat_11ABC_{ALNUM}", ""),
        ('"', "AKIAIOSFODNN7EXAMPLE", '"'),
        ("", f"xoxb-123456789012-{ALNUM}", ""),
        ("Authorization: Bearer ", ALNUM, ""),
        ("{'Authorization': 'Basic ", "dXNlcjpwYXNz", "'}"),
        ("cannot reach https://", "user:p%40ss@", "host:8000/v1"),
        ("redis://", ":pa@ss@", "host:6379/0"),
        ("http://host/v1?api_key=", "abc", "&n=1"),
        ("http://host/v1?n=1&token=", "abc", ""),
        ("", f"eyJhbGciOiJIUzI1NiJ9.{ALNUM}.{ALNUM}", ""),
        ("", f"-----BEGIN RSA PRIVATE KEY-----\n{ALNUM}\n{ALNUM}\n-----END RSA PRIVATE KEY-----", "\n"),
    ],
)
def test_tokens_of_known_shape_are_hidden_and_nothing_around_them(before: str, secret: str, after: str) -> None:
    hidden = "***@" if secret.endswith("@") else "***"
    assert redact_text(before + secret + after) == before + hidden + after


@given(secret_names, secret_values, st.text(string.ascii_lowercase + " \n"), st.text(string.ascii_lowercase + " \n"))
def test_what_a_recipe_holds_under_a_secret_name_is_hidden_in_all_spellings(
    name: str, value: str, before: str, after: str
) -> None:
    known = KnownSecrets()
    known.learn({"loggers": [{"init_args": {name: value}}]})
    for spelt in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote(value, safe="")):
        assert spelt not in known.hide(f"{before} {spelt} {after}")
        assert spelt not in known.hide(f"{before}={spelt}@{after}")


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_a_redacted_value_stays_as_it_is(value: object) -> None:
    once = redact(value)
    assert redact(once) == once


def test_the_environment_is_looked_at_when_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "sent correct-horse and battery staple"
    assert redact_text(text) == text
    monkeypatch.setenv("OPENAI_API_KEY", "correct-horse")
    monkeypatch.setenv("MAX_TOKENS", "staple")
    assert redact_text(text) == "sent *** and battery staple"
    monkeypatch.setenv("NUM_TOKEN", "1")
    monkeypatch.setenv("DB_PASSWORD", "")
    assert redact_text("1 of 1") == "1 of 1"


def test_one_secret_within_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "correct-horse")
    monkeypatch.setenv("B_TOKEN", "correct-horse-battery")
    assert redact_text("correct-horse-battery") == "***"


def test_every_line_of_a_secret_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNING_KEY", "first-line-of-it\nsecond-line-of-it\n")
    assert redact_text("read second-line-of-it") == "read ***"


def test_tracebacks_are_formatted_without_secrets() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError(f"cannot log in with hf_{ALNUM}")
    except ValueError:
        logger.exception("to https://%s@host", "user:word")
    assert "Traceback" in stream.getvalue()
    assert "cannot log in with ***" in stream.getvalue()
    assert "to https://***@host" in stream.getvalue()
    assert "word" not in stream.getvalue()


def test_a_stream_hides_and_is_otherwise_the_stream() -> None:
    stream = io.StringIO()
    redacting = RedactingStream(stream, "standard output")
    assert redacting.write(f"hf_{ALNUM}") == len(f"hf_{ALNUM}")
    redacting.writelines(["a", "b"])
    assert stream.getvalue() == "***ab"
    assert redacting.isatty() is False
