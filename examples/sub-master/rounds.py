"""A role whose ranks sum numbers around a ring. One dies on the way, and the ring is formed again, without torch."""

from __future__ import annotations

import os
import signal
from typing import Any

from ringmaster import Ring

from dljob import Worker, progress


class Rounds(Worker):
    """Sums `rounds` times; rank 1 kills itself in round `dies` of its first incarnation."""

    def run(self) -> dict[str, Any]:
        """Run the rounds; the return value is the job's result."""
        ring, sums = Ring(self.rank), []
        for number in range(self.config["rounds"]):
            if number == self.config.get("dies") and self.rank == 1 and self.context.incarnation == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            sums.append(ring.sum(number + self.rank))
            progress(number + 1)
        return {"sums": sums, "generation": ring.generation, "ranks": ring.size}
