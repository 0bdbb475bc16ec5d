"""A real pseudo-terminal with a program in it, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
import time

import pyte

TIMEOUT_S = 120.0


class TerminalEmulator:
    """Runs a program on a pseudo-terminal of a size; a context manager that ends it.

    Args:
        script: Python code; its ``commands`` is a file of what ``tell`` is given, a line each.
        argv: a program instead.
        environ: added to the environment, None takes away.
    """

    def __init__(self, *, script="", argv=(), columns=80, rows=24, environ=None, stderr=None):
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self.bytes = b""
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        reader, self._commands = os.pipe()
        code = f"commands = open({reader})\n{script}"
        given = {"COLUMNS": None, "LINES": None, "CI": None, "FORCE_COLOR": None, "TERM": "xterm-256color"}
        changed = {**os.environ, **given, **(environ or {})}
        self.process = subprocess.Popen(
            argv or [sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=stderr or slave,
            pass_fds=[reader], start_new_session=True, env={k: v for k, v in changed.items() if v is not None},
        )  # fmt: skip
        os.close(slave)
        os.close(reader)
        self._master = master
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        os.close(self._master)
        os.close(self._commands)

    def tell(self, line):
        """Give the script a line."""
        os.write(self._commands, f"{line}\n".encode())

    def wait(self):
        """The exit code, with all output on the screen."""
        code = self.process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)
        return code

    def lines(self):
        """What is on the screen now, blank ends of lines and of the screen left out."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self.screen.display).rstrip().splitlines()

    def wait_for(self, *parts, such_that=lambda lines: True):
        """The lines of the screen, once it shows all of these and is not in the middle of being drawn.

        Args:
            such_that: what else is true of the lines of a whole picture.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            lines = self.lines()
            if all(part in "\n".join(lines) for part in parts) and such_that(lines):
                return lines
            time.sleep(0.02)
        raise AssertionError("\n".join([f"not all of {parts} came, or not as they should:", *self.lines()]))

    def _read(self):
        while True:
            try:
                received = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            if not received:
                return
            with self._lock:
                self.bytes += received
                self._stream.feed(received)
