"""What the launcher tests run in children."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time


class Busy:
    """A rank that can be made to misbehave."""

    def __init__(self, rank):
        self.rank = rank

    def pid(self):
        return os.getpid()

    def add(self, a, b):
        return a + b

    def spawn_child(self):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    def hold_the_gil(self):
        sum(range(10**12))

    def sleep(self, seconds):
        time.sleep(seconds)

    def unpicklable(self):
        return lambda: 1

    def raise_awkward(self):
        raise Awkward("one", "two")


class Awkward(Exception):
    """Does not survive pickling: its constructor wants more than its args."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Refuses:
    def __init__(self, rank):
        raise ValueError("no such model")


def never_listens(address):
    time.sleep(600)


def returns(address, *, code=None):
    if code is not None:
        os._exit(code)


def listens(address, *, note=""):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        while True:
            server.accept()[0].close()
