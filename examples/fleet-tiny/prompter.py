"""The prompter asks engines for answers while the trainer trains on earlier ones. Plain Python, no torch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count

from task import BATCH, LENGTH, SAMPLES, SEPARATOR, Answer, Group, Segment, Tokens, prompt

from dljob import CompletionStream, DataQueue, RoleGroup, Worker


class Prompter(Worker):
    """Keeps some prompts under way, and puts each group of answers into the queue once it is whole."""

    def run(self) -> None:
        """Ask until the trainer closes the queue."""
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
            queue.put(Group(number, question, [answer(question, f"{number}/{sample}") for sample in range(SAMPLES)]))

    def next(self) -> int:
        """Return the number of the next prompt that was not trained."""
        with self.lock:
            return next(number for number in self.numbers if number not in self.done)


def answer(question: Tokens, seed: str) -> Answer:
    """Return the answer to a prompt; when its engine is lost, the stream goes on at another one."""
    body = {"prompt": [*question, SEPARATOR], "max_tokens": LENGTH, "seed": seed}
    made, stream = Answer(), CompletionStream("engine", body, timeout=120, silence=20)
    for chunk in stream:
        made.tokens += chunk.token_ids
        made.logprobs += [choice["logprob"] for choice in chunk.data["choices"]]
    made.segments = [Segment(part.callee, int(part.version), part.count) for part in stream.segments]
    for loss in stream.losses:
        print(f"answer {seed}: {loss}", flush=True)
    return made
