"""What stands below a run that ended: how it went, where everything is, and what to type next."""

from __future__ import annotations

import shlex

from areal_lit_callbacks.progress.course import Course
from areal_lit_callbacks.progress.words import amount, clock


def summary(course: Course, status: str) -> list[str]:
    """The lines, the first of which says how the run ended."""
    head = f"{course.name}: {status} at step {course.count.replace('/', ' of ')} after {clock(course.seconds)}"
    if course.step == course.first_step:
        return [f"{course.name}: {status} after {clock(course.seconds)}, at step {course.step} as before"]
    rows = {
        course.objective: f"{edges[0]:.3f} first, {edges[1]:.3f} last" if (edges := course.edges()) else "",
        "tokens": _tokens(course),
        "run": f"{course.run_dir}  (metrics.csv, samples.jsonl, plots/)",
        "log": str(course.run_dir / "logs" / "controller.log"),
        "next": _next(course, status),
    }
    return [head, *(f"  {label:<8} {text}" for label, text in rows.items() if text)]


def _tokens(course: Course) -> str:
    counts = {
        "generated": course.num_tokens.get("rollout/tokens"),
        "of prompts": course.num_tokens.get("rollout/prompt_tokens"),
        "trained on": course.num_tokens.get("data/tokens"),
    }
    return ", ".join(f"{amount(count)} {name}" for name, count in counts.items() if count)


def _next(course: Course, status: str) -> str:
    """The command that looks at what a finished run learned, or that goes on with another one."""
    config = shlex.quote(str(course.run_dir / "config.yaml"))
    if status == "finished":
        return f"areal-lit samples {shlex.quote(str(course.run_dir))}"
    if not any(course.run_dir.glob("checkpoints/step-*")):
        return ""
    return f"areal-lit fit --config {config} --resume auto" if course.is_from_recipe else 'trainer.fit(resume="auto")'
