"""Rewards of the recipes on sums."""

from __future__ import annotations

import operator
import re

NUMBER = r"\$?(\d[\d,]*(?:\.\d+)?)"
EQUATION = re.compile(rf"{NUMBER}\s*([+\-*/x×÷])\s*{NUMBER}\s*=\s*{NUMBER}")
OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "x": operator.mul, "×": operator.mul,
    "/": operator.truediv, "÷": operator.truediv,
}  # fmt: skip


def right_so_far(completion: str, answer: str) -> float:
    """1 for the answer, 0.5 for the beginning of it, 0 once a digit is wrong."""
    written = completion.strip()
    if written == answer:
        return 1.0
    return 0.5 if answer.startswith(written) else 0.0


def right_equations(completion: str) -> float:
    """1 if every equation of two numbers holds (to a cent), 0 if one does not, 0.5 for a line without any."""
    found = EQUATION.findall(completion)
    return float(all(map(_holds, found))) if found else 0.5


def _holds(equation: tuple[str, str, str, str]) -> bool:
    left, sign, right, result = equation
    a, b, c = (float(number.replace(",", "")) for number in (left, right, result))
    return not (b == 0 and sign in "/÷") and abs(OPERATIONS[sign](a, b) - c) < 0.01
