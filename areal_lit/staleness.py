"""How far rollouts may run ahead of training: the admission rule, as plain functions.

A step consumes data, a version is the step whose weights the engine holds. The staleness of a token is the consuming
step minus its version; of a trajectory or group, that of its oldest token.
"""

from __future__ import annotations

from collections.abc import Callable


def capacity(
    *, version: int, accepted: int, running: int, groups_before: Callable[[int], int], max_staleness: int,
    max_concurrent: int,
) -> int:  # fmt: skip
    """How many more groups may be admitted now; never negative.

    ``min(max_concurrent - running, groups_before(max_staleness + version + 1) - (accepted + running))``
    (AReaL, arXiv 2505.24298, counted in groups, and in steps that may differ in size). Groups that finish in the order
    they were admitted are then consumed at most ``max_staleness`` steps after the version they began with. A straggler
    may be overtaken and grow older: ``is_stale`` is for those.

    Args:
        version: of the weights the engine holds.
        accepted: groups accepted since step 0 (consumed and ready), over all resumes of the run.
        running: groups in flight.
        groups_before: how many groups all steps before the given one consume together.
    """
    ahead = groups_before(max_staleness + version + 1) - (accepted + running)
    return max(0, min(max_concurrent - running, ahead))


def is_stale(*, step: int, oldest_version: int | None, max_staleness: int) -> bool:
    """Whether a group with this oldest token is too old for ``step``; a group without generated tokens never is."""
    return oldest_version is not None and step - oldest_version > max_staleness
