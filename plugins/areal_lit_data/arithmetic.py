"""Procedural sums such as ``27+58=``: a task that a tiny model learns by RL in a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import overload

from areal_lit.contracts import PREVIEWED, DataModule, Preview, Source
from areal_lit.sizes import MAX_EXAMPLES, require_size
from areal_lit.text import TextCodec
from areal_lit.types import Example

DELTAS = (-10, -2, -1, 1, 2, 10)
"""How far off a wrong completion is."""


class Arithmetic(DataModule):
    """Arithmetic problems made on access; training and evaluation never share one.

    Fields: ``answer`` ("85") and ``completion``, the same unless ``noise`` made it wrong; with ``pairs`` also
    ``chosen``, the answer, and ``rejected``, that of another problem. All distinct problems are passed in shuffled
    order before one comes again, with what is wrong drawn afresh.

    Args:
        digits: of each operand, at most; operands start at 0.
        operators: any of ``+-*``.
        num_examples: length of an epoch.
        num_eval: distinct problems held out for evaluation; 0 for none.
        noise: share of training completions that are wrong by a small amount (for `sft`).
        pairs: give each problem a right and a wrong completion (for `dpo` and `reward_model`).
        seed: of the order, the split and what is wrong.
    """

    def __init__(
        self,
        *,
        digits: int = 2,
        operators: str = "+",
        num_examples: int = 100_000,
        num_eval: int = 256,
        noise: float = 0.0,
        pairs: bool = False,
        seed: int = 0,
    ) -> None:
        if not 1 <= digits <= 9:
            raise ValueError(f"digits must be in 1..9, got {digits}")
        if not operators or set(operators) - set("+-*") or len(set(operators)) < len(operators):
            raise ValueError(f"operators must be some of '+-*', each once, got {operators!r}")
        require_size("num_examples", num_examples, least=1, most=MAX_EXAMPLES)
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must be in [0, 1], got {noise}")
        num_problems = len(operators) * 10 ** (2 * digits)
        if not 0 <= num_eval < num_problems:
            raise ValueError(f"num_eval must be >= 0 and below the {num_problems} problems there are, got {num_eval}")
        self.digits = digits
        self.operators = operators
        self.num_examples = num_examples
        self.num_eval = num_eval
        self.noise = noise
        self.pairs = pairs
        self.seed = seed

    def setup(self, codec: TextCodec) -> None:
        """Nothing to load: problems are computed from their index."""

    def train(self) -> Mapping[str, Source]:
        num_problems = len(self.operators) * 10 ** (2 * self.digits)
        return {
            "arithmetic": Source(
                examples=Problems(self, range(self.num_eval, num_problems), self.num_examples, self.noise)
            )
        }

    def preview(self) -> Mapping[str, Preview]:
        return {name: Preview(examples=source.examples[:PREVIEWED]) for name, source in self.train().items()}

    def evaluation_names(self) -> Sequence[str]:
        return list(self.evaluation())

    def evaluation(self) -> Mapping[str, Source]:
        if not self.num_eval:
            return {}
        return {"arithmetic": Source(examples=Problems(self, range(self.num_eval), self.num_eval, 0.0))}


class Problems(Sequence[Example]):
    """Problems of a stretch of the shuffled order, repeated as often as ``length`` asks for."""

    def __init__(self, task: Arithmetic, ranks: range, length: int, noise: float) -> None:
        self.task = task
        self.ranks = ranks
        self.length = length
        self.noise = noise
        self.shuffled = Permutation(len(task.operators) * 10 ** (2 * task.digits), task.seed)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(self.length)[index]]
        index = range(self.length)[index]
        problem = self.shuffled(self.ranks[index % len(self.ranks)])
        problem, left = divmod(problem, 10**self.task.digits)
        which, right = divmod(problem, 10**self.task.digits)
        operator = self.task.operators[which]
        answer = _answer(operator, left, right)
        fields = {"answer": str(answer), "completion": str(answer)}
        if self.noise:
            draw = Random(f"{self.task.seed}/noise/{index}")
            if draw.random() < self.noise:
                delta = draw.choice([delta for delta in DELTAS if answer < 0 or answer + delta >= 0])
                fields["completion"] = str(answer + delta)
        if self.task.pairs:
            fields |= {"chosen": str(answer), "rejected": str(self._other_answer(operator, answer, index))}
        return Example(prompt=f"{left}{operator}{right}=", fields=fields)

    def _other_answer(self, operator: str, answer: int, index: int) -> int:
        """That of another problem, drawn at random."""
        draw, size = Random(f"{self.task.seed}/rejected/{index}"), 10**self.task.digits
        while (other := _answer(operator, draw.randrange(size), draw.randrange(size))) == answer:
            pass
        return other


def _answer(operator: str, left: int, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


class Permutation:
    """A seeded permutation of 0..size-1 that stores nothing: a Feistel network with cycle walking."""

    ROUNDS = 4

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self.keys = [Random(f"{seed}/order/{i}").getrandbits(64) | 1 for i in range(self.ROUNDS)]

    def __call__(self, index: int) -> int:
        value = self._shuffle(index)
        while value >= self.size:
            value = self._shuffle(value)
        return value

    def _shuffle(self, value: int) -> int:
        mask = (1 << self.half_bits) - 1
        high, low = value >> self.half_bits, value & mask
        for key in self.keys:
            mixed = ((low + 1) * key) & (2**64 - 1)
            high, low = low, high ^ ((mixed ^ (mixed >> 29)) >> 17) & mask
        return high << self.half_bits | low
