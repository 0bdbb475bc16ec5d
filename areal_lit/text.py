"""TextCodec: the one place where text becomes tokens and tokens become text.

Tokens that will be trained on are never decoded and encoded again: ids travel, text is for rewards and people.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, cast

from areal_lit.models import load_tokenizer
from areal_lit.types import Example, IntArray, ModelSpec


class TextCodec:
    """A model's tokenizer and chat template.

    Args:
        spec: whose tokenizer is loaded on first use.
        template_kwargs: passed to the chat template (``{"enable_thinking": False}``).
    """

    def __init__(self, spec: ModelSpec, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.spec = spec
        self.template_kwargs = dict(template_kwargs or {})

    @cached_property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return load_tokenizer(self.spec)

    def __getstate__(self) -> dict[str, Any]:
        """In another process it loads its own tokenizer."""
        return {"spec": self.spec, "template_kwargs": self.template_kwargs}

    def load(self) -> None:
        """Load the tokenizer now rather than on first use."""
        _ = self.tokenizer

    def encode(self, text: str) -> IntArray:
        """Token ids of plain text, without special tokens, [n]."""
        return _array(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: IntArray) -> str:
        """Text of generated tokens, special tokens left out."""
        return cast(str, self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def last_tokens(self, token_ids: IntArray, ends: Sequence[int]) -> IntArray:
        """For each number of characters of ``decode(token_ids)``, the token with which that much is there.

        A character that takes several tokens is there with the last of them. Tokens are never encoded again.

        Args:
            ends: each from 1 to the length of the decoded text.

        Returns:
            Indices into ``token_ids``, one per end.
        """
        text, n = self.decode(token_ids), len(token_ids)

        def is_there(token: int, end: int) -> bool:
            return token >= 0 and self.decode(token_ids[: token + 1]).startswith(text[:end])

        # right where tokens are whole characters, so that hardly any prefix is decoded; looked for where not
        sizes = [0, *accumulate(len(self.decode(token_ids[i : i + 1])) for i in range(n))]
        found: list[int] = []
        token, known = -1, 0
        for end in ends:
            guess = bisect_left(sizes, sizes[token + 1] + end - known) - 1
            if is_there(guess, end) and not is_there(guess - 1, end):
                token = guess
            else:
                token = bisect_left(range(n), True, key=partial(is_there, end=end))
            known = end
            found.append(token)
        return _array(found)

    def encode_messages(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> IntArray:
        """Chat messages through the model's template. Raises ValueError for a tokenizer without one."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                f"the tokenizer of {self.spec.path!r} has no chat template, so it cannot encode chat messages; "
                "give prompts as plain text or choose an instruct model"
            )
        ids = self.tokenizer.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False,
            **self.template_kwargs,
        )  # fmt: skip
        return _array(ids)

    def encode_prompt(self, example: Example) -> IntArray:
        """Token ids of an example's prompt, [n]: plain text as it is, messages through the template."""
        if isinstance(example.prompt, str):
            return self.encode(example.prompt)
        return self.encode_messages(example.prompt)

    @cached_property
    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: the tokenizer's end token and the model's generation configuration's."""
        from areal_lit.models import end_token_ids

        return end_token_ids(self.spec, self.tokenizer)


def _array(ids: Sequence[int]) -> IntArray:
    import numpy as np

    return np.asarray(ids, dtype=np.int64)
