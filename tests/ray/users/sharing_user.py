"""User code that shares weights and a queue between its ranks."""

from __future__ import annotations

from prime_user import until_told

from dljob import DataQueue, WeightChannel, current_worker


def shares() -> dict[str, int]:
    """Publishes version 7 of weights and puts three items that nobody gets, as rank 0, or receives; then waits."""
    me = current_worker()
    if me.rank == 0:
        WeightChannel("policy").publish(7, {"w": [1, 2, 3]})
        queue = DataQueue("left", max_items=9)
        for item in range(3):
            queue.put(item)
    else:
        WeightChannel("policy").receive(60)
    return until_told()
