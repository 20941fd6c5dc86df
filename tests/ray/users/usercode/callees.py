"""A callee of all tempers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import dljob
from dljob import rpc


class Unpicklable:
    def __reduce__(self):
        raise TypeError("it holds a lock")


class Callee(dljob.Worker):
    def __init__(self):
        self.ready = False
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()

    def setup(self):
        gate = self.config.get("gate")
        while gate and not Path(gate).exists():
            time.sleep(0.01)
        self.ready = True

    @rpc
    def add(self, a, b=0):
        assert self.ready
        return a + b

    @rpc
    def whoami(self):
        return self.rank, self.context.incarnation, os.getpid()

    @rpc
    def fail(self):
        raise ValueError("the model said no")

    @rpc
    def nap(self, seconds):
        time.sleep(seconds)
        return seconds

    @rpc
    def hold(self, gate):
        while not Path(gate).exists():
            time.sleep(0.02)

    @rpc
    def note(self, path, text):
        with Path(path).open("a") as out:
            out.write(text)

    @rpc(idempotent=True)
    def die_once(self, note):
        path = Path(note)
        if not path.exists():
            path.write_text("died")
            os.kill(os.getpid(), 9)
        return self.context.incarnation

    @rpc
    def die(self):
        os.kill(os.getpid(), 9)

    @rpc
    async def later(self, x):
        await asyncio.sleep(0.01)
        return x * 2

    @rpc(concurrency=1)
    def one_at_a_time(self):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.02)
        with self.lock:
            self.running -= 1
        return self.most

    @rpc
    def unpicklable(self):
        return Unpicklable()

    @rpc
    def echo(self, value):
        return value

    def private(self):
        return None


class Quitter(Callee):
    def run(self):
        return None


class Plain:
    """No Worker at all."""

    @rpc
    def hello(self):
        return "hello"
