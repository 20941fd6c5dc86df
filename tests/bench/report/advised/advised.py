"""A driver that makes steps after its rollouts, holds memory, and saves, as its config says; times are known."""

from __future__ import annotations

import time

from dljob import RoleGroup, Worker, checkpoint, progress, rpc


class SlowToCopy:
    """A part of a state that takes a while to save."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> dict[str, float]:
        """Take the time that copying a large state would."""
        time.sleep(self.seconds)
        return {"seconds": self.seconds}


class Driver(Worker):
    """Makes steps: rollouts share a batch, then it trains for a while, and saves after every so many steps."""

    def run(self) -> int:
        """Make all steps, from the last saved one on."""
        steps, every = self.config["steps"], self.config["everySteps"]
        held = bytearray(self.config["holdMiB"] << 20)
        found = checkpoint.load() if every else None
        done = found[0] if found else 0
        while done < steps:
            done += 1
            if batch := self.config["batchSeconds"]:
                rollouts = RoleGroup("rollout")
                rollouts.call("generate", batch / len(rollouts)).result(600)
            time.sleep(self.config["stepSeconds"])
            progress(done)
            if every and done % every == 0:
                checkpoint.save(done, {"step": done, "rest": SlowToCopy(self.config["saveSeconds"])})
        return len(held)


class Rollout(Worker):
    """Generates for as long as it is told to."""

    @rpc(idempotent=True)
    def generate(self, seconds: float) -> float:
        """Take so long."""
        time.sleep(seconds)
        return seconds
