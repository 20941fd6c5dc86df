"""A job whose time is known: steps take half a second, and code takes as long to import as torch does."""

from __future__ import annotations

import time

from dljob import RoleGroup, Worker, progress, rpc

IMPORT_S, SETUP_S, STEP_S = 5.0, 2.0, 0.5
time.sleep(IMPORT_S)


class Driver(Worker):
    """Makes steps, for each of which all workers are called."""

    def run(self) -> int:
        """Make all steps."""
        workers = RoleGroup("worker")
        for step in range(self.config["steps"]):
            workers.call("work", step).result(600)
            progress(step + 1)
        return self.config["steps"]


class Helper(Worker):
    """A worker; it takes a while to set up."""

    def setup(self) -> None:
        """Load what it works with."""
        time.sleep(SETUP_S)

    @rpc(idempotent=True)
    def work(self, step: int) -> int:
        """Do a part of a step."""
        time.sleep(STEP_S)
        return step
