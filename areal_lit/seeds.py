"""Seeds that are equal in every process and on every machine."""

from __future__ import annotations

from hashlib import blake2b


def stable_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) for this tuple of names and numbers; unlike ``hash``, the same in every process."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
