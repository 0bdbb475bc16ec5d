"""A process that outlives a killed controller by a moment: it kills what the controller had started.

Standard input brings lines ``+GROUP``, ``-GROUP`` (process groups) and ``d PATH`` (a directory to remove). At
its end, which comes with any death of the controller, every group still listed is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    directories: list[str] = []
    for line in sys.stdin:
        command, value = line[0], line[1:].strip()
        if command == "+":
            groups.add(int(value))
        elif command == "-":
            groups.discard(int(value))
        else:
            directories.append(value)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
