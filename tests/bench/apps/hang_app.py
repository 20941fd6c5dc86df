"""Ranks that step, evenly or as unevenly as honest ones do: steps of every length, checkpoints, compilations, calls."""

from __future__ import annotations

import json
import os
import pdb
import threading
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from dljob import DataQueue, RoleGroup, WeightChannel, Worker, checkpoint, progress, rpc

EVEN_S = 0.2
PUBLISH_EVERY, RECEIVE_EVERY = 20, 50
TAIL, TAILS = 100, 0.005
"""An item, or a call, takes so many times as long as usual, and how often."""
STEP_S, COMPILE_S, SAVE_S, PROMPT_S = 0.35, 50.0, 50.0, 450.0
"""Seconds of a usual step, item or call, of a later compilation, of the slowest save, and at a debugger's prompt, in a
job with the default bounds: all but the last, which is longer than `idleSeconds`, are below the 60 s after which a
stall is told, also with the tail of a step. A job whose bounds are those divided by `divisor` has these divided, too;
the age of reports, up to 5 s, is not."""
SAVE_EVERY, COMPILE_EVERY, EVAL_EVERY, BARRIER_EVERY = 40, 300, 110, 10


def entered(worker: Worker) -> Path:
    """Write down that a rank came into user code; the folder of what it writes."""
    out = Path(worker.config["out"])
    line = {"t": time.time(), "pid": os.getpid(), "role": worker.context.role, "rank": worker.rank}
    with (out / f"{worker.context.role}-{worker.rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return out


def usual(worker: Worker) -> float:
    """Return the seconds of a usual step of an uneven job."""
    return STEP_S / float(worker.config["divisor"])


def takes(chance: Random, seconds: float) -> float:
    """Return how long something takes: between half and three times the usual, seldom TAIL times."""
    return seconds * (TAIL if chance.random() < TAILS else chance.choice((0.5, 1, 1, 1, 2, 3)))


def compile_first(width: int) -> None:
    """Compile a function with torch's compiler, as a first step does: most of it runs in processes of its own."""
    import torch

    def layer(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum()

    torch.compile(layer)(torch.ones(width, 32))


def burn(seconds: float) -> None:
    """Compile something, as it were."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


class Trainer(Worker):
    """A rank of a torch group; `uneven` in its config: with all that makes honest steps uneven."""

    def run(self) -> None:
        """Steps until it is ended; when it did the last one is the time of a file."""
        import torch
        import torch.distributed as dist

        out = entered(self)
        last = out / f"last-{self.rank}"
        state = {"weights": torch.zeros(1 << 20)}
        step = 0
        if self.config.get("uneven") and self.rank == 1:
            compile_first(64)
        while not self.context.stopping:
            dist.all_reduce(torch.ones(1))
            if self.config.get("uneven"):
                self._pause(step, out, state)
            else:
                time.sleep(EVEN_S)
            progress(step := step + 1)
            last.touch()

    def _pause(self, step: int, out: Path, state: dict[str, Any]) -> None:
        """What one rank does in a step while the others wait; all draw the same."""
        import torch.distributed as dist

        chance, divisor = Random(step), float(self.config["divisor"])  # noqa: S311 - it keeps no secret
        chosen = chance.randrange(self.world_size)
        time.sleep(usual(self) * chance.choice((0.5, 1, 2)) if chosen == self.rank else usual(self) / 2)
        if step % SAVE_EVERY == SAVE_EVERY - 2 and self.rank == 0:
            self.context.job.checkpoint()  # a cut of all roles, with the save of the next step
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            checkpoint.save(step, state)
            if self.rank == 0:  # a slow disk
                (out / "saved").write_bytes(bytes(1 << 22))
                time.sleep(chance.uniform(0.2, 1) * SAVE_S / divisor)
        if step % BARRIER_EVERY == 0:
            dist.barrier()
        if step % PUBLISH_EVERY == 0 and self.rank == 0:
            WeightChannel("policy").publish(step, {"version": step})
        if step % EVAL_EVERY == EVAL_EVERY - 1 and chosen == self.rank:
            time.sleep(TAIL * usual(self))
        if step % COMPILE_EVERY in (COMPILE_EVERY // 2, COMPILE_EVERY - 1) and chosen == self.rank:
            burn(COMPILE_S / divisor)


class Rollout(Worker):
    """Each rank for itself; some steps need an answer of another role, which takes its time."""

    def run(self) -> None:
        """Steps of very different lengths."""
        entered(self)
        chance = Random(self.rank)  # noqa: S311
        judges, samples, weights = RoleGroup("judge"), DataQueue("samples", max_items=4), WeightChannel("policy")
        step = 0
        while not self.context.stopping:
            samples.get()
            if step % RECEIVE_EVERY == RECEIVE_EVERY - 1:
                weights.receive()
            time.sleep(takes(chance, usual(self)))
            if chance.random() < 0.2:
                judges.call_rank0("judge", takes(chance, usual(self))).result()
            if chance.random() < 0.001:
                burn(COMPILE_S / 3 / float(self.config["divisor"]))
            progress(step := step + 1)


class Feeder(Worker):
    """Makes items for a queue that is mostly full, and at times empty."""

    def run(self) -> None:
        """Make items; some take very long."""
        entered(self)
        chance, samples = Random(0), DataQueue("samples", max_items=4)  # noqa: S311
        while not self.context.stopping:
            time.sleep(usual(self) / 2 * (TAIL if chance.random() < TAILS else 1))
            samples.put(0)


class Judge(Worker):
    """Answers, and now and then asks somebody who is at a debugger's prompt."""

    def run(self) -> None:
        """Wait to be asked."""
        entered(self)
        progress(1)
        seconds = PROMPT_S / float(self.config["divisor"])
        while not self.context.stopping.wait(seconds / 2):
            RoleGroup("debugged").call_rank0("inspect", seconds).result()

    @rpc
    def judge(self, seconds: float) -> float:
        """Think for so long."""
        time.sleep(seconds)
        return seconds


class Debugged(Worker):
    """Comes to a breakpoint, at which somebody thinks for a while."""

    def run(self) -> None:
        """Wait to be asked."""
        entered(self)
        self.context.stopping.wait()

    @rpc
    def inspect(self, seconds: float) -> int:
        """Stop at a breakpoint for so long."""
        reader, writer = os.pipe()
        with os.fdopen(reader) as typed, Path(os.devnull).open("w") as screen, os.fdopen(writer, "w") as keyboard:
            timer = threading.Timer(seconds, lambda: print("continue", file=keyboard, flush=True))
            timer.start()
            pdb.Pdb(stdin=typed, stdout=screen, nosigint=True, readrc=False).set_trace()
            timer.join()
        return 1


class Asker(Worker):
    """Asks for an answer that always takes the same time, and writes down how long it took."""

    def run(self) -> None:
        """Ask, until there is no answer any more."""
        out, took = entered(self), list[float]()
        while not self.context.stopping:
            begun = time.monotonic()
            RoleGroup("answerer").call_rank0("answer").result()
            took.append(time.monotonic() - begun)
            usual_row = {"median": median(took[-32:]), "longest": max(took), "count": len(took)}
            (out / "asked.new").write_text(json.dumps(usual_row))
            (out / "asked.new").replace(out / "asked")
            took[:-32] = [max(took)]


class Answerer(Worker):
    """Answers evenly, until a file is there: then no more."""

    def run(self) -> None:
        """Wait to be asked."""
        entered(self)
        self.context.stopping.wait()

    @rpc
    def answer(self) -> int:
        """Answer after a while."""
        out = Path(self.config["out"])
        time.sleep(usual(self))
        if (out / "plant").exists():
            (out / "planted").touch()
            self.context.stopping.wait()
        return 1
