"""What ``fit``, ``evaluate`` and ``validate`` say of a recipe and of what became of it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from areal_lit.checkpointing import NothingToTrain
from areal_lit.cli.working_directory import deletion
from areal_lit.validation import BrokenRules


def announce(configs: Sequence[str]) -> None:
    """Say on a terminal what is read: the imports before a run can say more take seconds."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"reading {', '.join(configs)} ...", file=sys.stderr, flush=True)


def report_broken_rules(broken: Sequence[str]) -> bool:
    """Print every broken rule of a recipe; whether there were any."""
    if broken:
        print(f"the recipe breaks {len(broken)} rule{'s' if len(broken) > 1 else ''}:", file=sys.stderr)
        for rule in broken:
            print(f"  - {rule}", file=sys.stderr)
    return bool(broken)


def guarded(work: Callable[[], None]) -> int:
    """Do a run's work: 0 finished, 1 failed, 2 when none is left, which trying again does not change.

    A failure is told in short here, and in full where its notes say.
    """
    try:
        work()
    except BrokenRules as broken:
        report_broken_rules(broken.rules)
        return 1
    except NothingToTrain as ended:
        print(ended, file=sys.stderr)
        return 2
    # whatever a run fails of ends here; the run has written its traceback down, and where in a note
    except Exception as error:  # noqa: BLE001
        print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
        for note in [*filter(None, [deletion(), _few_files(error)]), *getattr(error, "__notes__", ())]:
            print(f"({note})", file=sys.stderr)
        return 1
    return 0


def _few_files(error: Exception) -> str | None:
    """What to do where no more files could be opened, in this process or in one whose failure is told."""
    if os.strerror(errno.EMFILE) not in str(error):
        return None
    from areal_lit.diagnosis.machine import limit_on_open_files

    _, found, advice = limit_on_open_files()
    return f"open files: {found}; {advice}"
