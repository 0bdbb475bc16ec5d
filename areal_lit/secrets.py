"""Secrets: which names and which text hold one, and copies of both without.

Three things are hidden. Values that stand under a secret's name, in a recipe or in the environment, are known and
hidden wherever they turn up, also as ``repr``, JSON and URLs spell them; those below six characters only under their
name, because they are ordinary words too. Tokens of well-known shape and passwords in URLs are hidden without being
known. Text is searched for a literal mark of each shape first, so ordinary text costs a few substring searches.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TextIO
from urllib.parse import quote

from areal_lit.files import writing

HIDDEN = "***"
MIN_LENGTH = 6
LONGEST = 1024
"""Characters of the longest token that is recognised; half a token, at a cut, is not."""

_NAME = re.compile(
    r"(token|secret|password|passwd|passphrase|credential|authorization|cookie"
    r"|(api|access|private|secret|auth|account|service|master|signing|encryption|license|ssh)[_-]?key([_-]?id)?)s?$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Z0-9_]+_(KEY|PASS|PAT)")
_VOCABULARY = re.compile(
    r"(^|[_-])(bos|eos|pad|unk|sep|cls|mask|eot|eom|boi|eoi|stop|start|end|begin|special|added|image|audio|video|vision"
    r"|tool|think|thinking|reasoning|role|turn|system|user|assistant|prefix|suffix|middle|placeholder|separator|newline"
    r"|new|next|first|last|prompt|completion|generated|num|max|min|total|input|output|cached|draft)[_-]?tokens?$",
    re.IGNORECASE,
)
"""Tokens of a language model, which are no secrets: ``eos_token``, ``additional_special_tokens``."""

_QUERY = "api[_-]?key|(?:access|auth|security)[_-]?token|token|secret|password|passwd|sig|signature"
_SHAPES = tuple(
    (mark, re.compile(pattern, re.DOTALL), replacement)
    for mark, pattern, replacement in (
        ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}", HIDDEN),
        ("sk-", r"(?<![A-Za-z0-9])sk-(?:(?:proj|ant|or|lf|svcacct|admin)-[\w-]{16,}|[A-Za-z0-9]{16,})", HIDDEN),
        ("gh", r"gh[pousr]_[A-Za-z0-9]{20,}", HIDDEN),
        ("github_pat_", r"github_pat_\w{20,}", HIDDEN),
        ("glpat-", r"glpat-[\w-]{20,}", HIDDEN),
        ("KIA", r"(?<![A-Z0-9])AKIA[A-Z0-9]{16}(?![A-Z0-9])", HIDDEN),
        ("SIA", r"(?<![A-Z0-9])ASIA[A-Z0-9]{16}(?![A-Z0-9])", HIDDEN),
        ("AIza", r"AIza[\w-]{35}", HIDDEN),
        ("xox", r"xox[abeoprs]-[\w-]{10,}", HIDDEN),
        ("wandb_v", r"wandb_v\d_\w{20,}", HIDDEN),
        ("eyJ", r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}", HIDDEN),
        ("earer ", r"(?<=[Bb]earer )[\w.~+/=-]{16,}", HIDDEN),
        ("uthorization", r"([Aa]uthorization['\"]?\s*[:=]\s*['\"]?(?:Basic|Token) )[^\s'\"]+", rf"\1{HIDDEN}"),
        ("PRIVATE KEY-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", HIDDEN),
        ("://", r"(?<=://)[^\s/@:'\"]*:[^\s/'\"]+@", f"{HIDDEN}@"),
        ("=", rf"([?&](?:X-Amz-)?(?i:{_QUERY})=)[^&\s'\"#]+", rf"\1{HIDDEN}"),
    )
)

_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?!.*-----END [A-Z ]*KEY-----)", re.DOTALL)
_KEY_END = re.compile(r"-----END [A-Z ]*KEY-----")
_LONGEST_KEY = 1 << 16
"""Characters after which a key that never ends is none: somebody wrote of one."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether what a key or environment variable of this name holds is not for others to see."""
    return bool(_NAME.search(name) or _VARIABLE.fullmatch(name)) and not _VOCABULARY.search(name)


class KnownSecrets:
    """Values to hide wherever they turn up: those that recipes hold under secrets' names, and the environment's."""

    def __init__(self) -> None:
        self._learned: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def learn(self, config: Any) -> None:
        """Hide from now on what this recipe holds under names of secrets."""
        with self._lock:
            self._learned |= {spelt for value in _secrets(config) for spelt in _spelt(value)}

    def hide(self, text: str) -> str:
        """The text without them; the environment is looked at anew."""
        values = tuple(value for name, value in os.environ.items() if is_secret_name(name))
        for spelt in _longest_first(self._learned, values):
            if spelt in text:
                text = text.replace(spelt, HIDDEN)
        return text


_process = KnownSecrets()
learn = _process.learn


def redact(value: Any) -> Any:
    """A copy of plain values in which secrets are hidden, by name and in text; tuples are lists.

    Numbers stay where they may be counts (``tokens: 5``) or ports, and are hidden right under a name like ``password``.
    """
    return _redacted(value, "", False)


def hidden_keys(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a redacted value lacks a secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from hidden_keys(item, (*keys, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from hidden_keys(item, (*keys, str(index)))
    elif value == HIDDEN:
        yield keys


def redact_text(text: str) -> str:
    """The text with known secrets, tokens of well-known shape and passwords in URLs hidden."""
    text = _process.hide(text)
    for mark, pattern, replacement in _SHAPES:
        if mark in text:
            text = pattern.sub(replacement, text)
    return text


class RedactingFlow:
    """The same for text that comes in pieces of whole lines: a private key has many, and may come in many pieces."""

    def __init__(self) -> None:
        self._num_in_key = 0

    def redact(self, text: str) -> str:
        """The next piece without secrets."""
        if self._num_in_key:
            end = _KEY_END.search(text, 0, self._num_in_key)
            num_hidden = end.end() if end else min(len(text), self._num_in_key)
            self._num_in_key = 0 if end else self._num_in_key - num_hidden
            text = text[num_hidden:]
        if _KEY_BEGIN.search(text):
            self._num_in_key = _LONGEST_KEY
        return redact_text(text)


class RedactingFormatter(logging.Formatter):
    """Formats a record, its traceback included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


class RedactingStream:
    """A text stream whose writers' secrets do not reach it; the rest of its methods are the stream's.

    What cannot be written is a WriteError; where its reader has gone, a BrokenPipeError.

    Args:
        name: for errors.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        with writing(self._name):
            self._stream.write(redact_text(text))
        return len(text)

    def flush(self) -> None:
        with writing(self._name):
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_terminal() -> None:
    """Hide secrets in everything that this process prints, also in the traceback it may end with."""
    for name, called in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, RedactingStream):
            setattr(sys, name, RedactingStream(stream, called))


def _redacted(value: Any, name: str, is_inside: bool) -> Any:
    """The copy of what stands under ``name``, maybe inside of what is secret as a whole."""
    is_inside = is_inside or is_secret_name(name)
    if isinstance(value, Mapping):
        return {str(key): _redacted(item, str(key), is_inside) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, "", is_inside) for item in value]
    if _is_secret(value, name, is_inside):
        return HIDDEN
    return value if value is None or isinstance(value, bool | int | float) else redact_text(str(value))


def _secrets(value: Any, name: str = "", is_inside: bool = False) -> Iterator[str]:
    """What is hidden there for its name."""
    is_inside = is_inside or is_secret_name(name)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets(item, str(key), is_inside)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, "", is_inside)
    elif _is_secret(value, name, is_inside):
        yield str(value)


def _is_secret(value: Any, name: str, is_inside: bool) -> bool:
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return is_secret_name(name) and "token" not in name.lower()
    return is_inside and value != ""


@lru_cache(maxsize=4)
def _longest_first(learned: frozenset[str], values: tuple[str, ...]) -> tuple[str, ...]:
    """Known secrets in all spellings, the longest first: one may be part of another."""
    return tuple(sorted(learned.union(*map(_spelt, values)), key=len, reverse=True))


@lru_cache(maxsize=1024)
def _spelt(value: str) -> frozenset[str]:
    """The spellings in which a secret is looked for; none for what is too short or a count."""
    return frozenset(form for form in _spellings(value) if len(form) >= MIN_LENGTH and form != HIDDEN)


def _spellings(value: str) -> Iterator[str]:
    if value.isdecimal() and len(value) < 2 * MIN_LENGTH:
        return
    for line in {value, value.strip(), *value.splitlines()}:
        yield from (line, quote(line, safe=""), quote(line), json.dumps(line)[1:-1], repr(line)[1:-1])
        yield json.dumps(line, ensure_ascii=False)[1:-1]
