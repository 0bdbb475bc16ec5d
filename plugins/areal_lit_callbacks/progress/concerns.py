"""What a person should look into, read off a step's metrics."""

from __future__ import annotations

from collections.abc import Mapping

from areal_lit.weight_sync.mismatch import MISMATCH

BUDGET_SHARE = 0.5


def concerns(metrics: Mapping[str, float], *, warn_above: float) -> dict[str, str]:
    """Each thing that is off, the worst first: what kind it is, and a short sentence about it.

    Args:
        warn_above: the mean difference of log-probs from which the run warns.
    """
    mismatches = [metrics.get(name, 0.0) for name in (MISMATCH, "sync/probe_difference")]
    mismatch = next((value for value in mismatches if not value <= warn_above), 0.0)
    unscored = max(metrics.get("reward/unscored", 0.0), metrics.get("rollout/unscored", 0.0))
    budget = metrics.get("rollout/failure_budget_used", 0.0)
    skipped = metrics.get("train/skipped_steps", 0.0)
    # of a teacher, a critic, scores of steps or a penalty on length there is something to learn all the same
    is_taught = "train/teacher_divergence" in metrics or metrics.get("train/advantage_std", 0.0) > 0
    is_equal = metrics.get("rollout/equal_rewards") == 1 and not is_taught
    is_masked = metrics.get("train/tokens") == 0
    is_flat = metrics.get("train/grad_norm") == 0
    found = (
        ("mismatch", not mismatch <= warn_above, f"engine and trainer disagree by {mismatch:.2g} in log-probs"),
        ("budget", budget >= BUDGET_SHARE, f"{budget:.0%} of the failure budget is used: episodes fail"),
        ("unscored", unscored > 0, f"{unscored:.0f} rewards could not be scored"),
        ("skipped", skipped > 0, f"{skipped:.0f} optimizer steps were skipped: gradients were not finite"),
        ("masked", is_masked, "no token is trained on: workflow, unscored rewards or algorithm leave loss_mask empty"),
        ("equal", is_equal and not is_masked, "all groups have equal rewards: nothing to learn from"),
        ("flat", is_flat and not (is_equal or is_masked), "the gradient is 0: nothing is learned"),
        ("truncated", metrics.get("rollout/truncated") == 1, "every completion ends at max_new_tokens"),
    )
    return {kind: sentence for kind, is_so, sentence in found if is_so}
