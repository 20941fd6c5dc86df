"""Engines whose streams resume, and what can be seen of them."""

from __future__ import annotations

import os
import signal

import dljob
from dljob import rpc


def next_token(text: list[int]) -> int:
    """Return what a greedy decoder would: a function of the whole text alone."""
    return (sum((place + 1) * token for place, token in enumerate(text)) * 31 + len(text)) % 997


class Engine(dljob.Worker):
    def __init__(self):
        self.made = 0

    @rpc(dispatch="round_robin", stream=8, resume="prefix")
    def tokens(self, prompt, count, *, received=()):
        text = [*prompt, *received]
        while len(text) < len(prompt) + count:
            text.append(next_token(text))
            self.made += 1
            yield text[-1]

    @rpc(dispatch="round_robin", stream=8, resume="prefix")
    def slow_tokens(self, prompt, count, *, received):
        for token in self.tokens(prompt, count, received=received):
            self.context.stopping.wait(0.02)
            yield token

    @rpc(dispatch="round_robin", stream=8, resume="prefix")
    def poison(self, *, received):
        yield from range(len(received), 5)
        # The items before go out first, as from an engine that computes for a while.
        self.context.stopping.wait(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    @rpc
    def pid(self):
        return os.getpid()

    @rpc
    def how_many(self):
        return self.made
