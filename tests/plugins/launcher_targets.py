"""What the launcher tests run in children."""

from __future__ import annotations

import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time

import psutil


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


class Looks:
    """A rank that tells what it finds itself to be."""

    def __init__(self, rank):
        self.rank = rank
        self.modules = set(sys.modules)

    def had(self, module):
        return module in self.modules

    def evaluate(self, expression):
        names = {"gc": gc, "os": os, "random": random, "sys": sys, "psutil": psutil, "threading": threading}
        return eval(expression, names)

    def random_numbers(self):
        import numpy as np

        return random.random(), np.random.rand()

    def num_torch_threads(self):
        import torch

        return torch.get_num_threads()


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
