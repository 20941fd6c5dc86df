"""The prompter asks engines for answers while the trainer trains on earlier ones. Plain Python, no torch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count

import stream
from task import BATCH, SAMPLES, Group, prompt

import dljob
from dljob import DataQueue, RoleGroup, Worker


class Prompter(Worker):
    """Keeps some prompts under way, and puts each group of answers into the queue once it is whole."""

    def run(self) -> None:
        """Ask until the trainer closes the queue."""
        self.engines = dljob.endpoints("engine")
        done: list[int] = RoleGroup("trainer").call_rank0("trained").result(60)
        self.done = frozenset(done)
        self.numbers, self.lock = count(), threading.Lock()
        with ThreadPoolExecutor(self.config["underWay"]) as pool:
            asking = [pool.submit(self.ask) for _ in range(self.config["underWay"])]
            for each in as_completed(asking):
                each.result()

    def ask(self) -> None:
        """Ask for one group after another."""
        queue: DataQueue[Group] = DataQueue("groups", max_items=BATCH)
        while (number := self.next()) < self.config["steps"] * BATCH:
            question = prompt(self.config["seed"], number)
            found = [stream.ask(self.engines, question, f"{number}/{sample}") for sample in range(SAMPLES)]
            queue.put(Group(number, question, [answer for answer, _ in found]))
            if lost := sum(times for _, times in found):
                print(f"prompt {number}: {lost} streams went on at another engine", flush=True)

    def next(self) -> int:
        """Return the number of the next prompt that was not trained."""
        with self.lock:
            return next(number for number in self.numbers if number not in self.done)
