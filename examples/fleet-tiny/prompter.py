"""The prompter asks engines for answers while the trainer trains on earlier ones. Plain Python, no torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed

from task import BATCH, LENGTH, SAMPLES, SEPARATOR, Answer, Group, Segment, Tokens, prompt

from dljob import CompletionStream, DataQueue, Worker


class Prompter(Worker):
    """Keeps some prompts under way, and puts each group of answers into the queue once it is whole.

    It has no state: a prompt that it took and did not answer waits in the queue again after its death, and when the
    job goes back to a cut. Should it die between putting a group and taking its next prompt, the key drops the second.
    """

    def run(self) -> None:
        """Ask until the trainer closes the queue of prompts."""
        with ThreadPoolExecutor(self.config["underWay"]) as pool:
            asking = [pool.submit(self.ask) for _ in range(self.config["underWay"])]
            for each in as_completed(asking):
                each.result()

    def ask(self) -> None:
        """Ask for one group after another: each thread is a consumer of its own."""
        prompts = DataQueue("prompts")
        groups = DataQueue("groups", max_items=BATCH)
        for number in prompts:
            question = prompt(self.config["seed"], number)
            answers = [answer(question, f"{number}/{sample}") for sample in range(SAMPLES)]
            groups.put(Group(number, question, answers), key=str(number))


def answer(question: Tokens, seed: str) -> Answer:
    """Return the answer to a prompt; when its engine is lost, the stream goes on at another one."""
    body = {"prompt": [*question, SEPARATOR], "max_tokens": LENGTH, "seed": seed}
    made, stream = Answer(), CompletionStream("engine", body, timeout=120, silence=20)
    for chunk in stream:
        made.tokens += chunk.token_ids
        made.logprobs += [choice["logprob"] for choice in chunk.data["choices"]]
    made.segments = [Segment(part.callee, int(part.version), part.count) for part in stream.segments]
    for loss in stream.losses:
        print(f"answer {seed} goes on elsewhere after {loss.position} tokens: {loss.reason}", flush=True)
    return made
