"""The real service of shards on the real core, for clients without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from dljob.errors import CheckpointError
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.transition import initial, transition
from dljob.plan.plan import plan
from dljob.runtime.controller.services import shard_service
from dljob.spec.model import DLJobManifest
from dljob.tasks import TaskOwner


class Place:
    of = "w/0"
    incarnation, attempt, number = 1, 1, 1
    run_id = RunId(1, 1)


class Desk:
    """A client whose questions are answered by the real desk and core."""

    def __init__(self) -> None:
        spec = {"roles": [{"name": "w", "replicas": 2, "entrypoint": {"class": "a.B"}}]}
        manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": spec})
        state = initial(plan(manifest), manifest.spec, "u" * 32, 0.0)
        own = {rank: state.ranks["w", rank] for rank in (0, 1)}
        ranks = state.ranks
        for rank, was in own.items():
            ranks = ranks.set(("w", rank), type(was)(incarnation=1))
        self.state = type(state)(**{**{n: getattr(state, n) for n in state.__dataclass_fields__}, "ranks": ranks})
        self.final = None
        self.tasks = TaskOwner(print)
        self.changed = asyncio.Condition()
        self.journal: list[ev.ShardsTold] = []
        self.places = [Place()]
        self.closed = False
        self.loaded: CheckpointId | None = None

    async def offer(self, event: Any) -> None:
        self.journal.append(event)
        self.state = transition(self.state, event, 1.0).state

    def started_again(self, rank: int) -> None:
        """The rank has another incarnation and life, which may be in the same process."""
        ranks = self.state.ranks.set(("w", rank), type(self.state.ranks["w", rank])(incarnation=2))
        self.state = type(self.state)(
            **{**{n: getattr(self.state, n) for n in self.state.__dataclass_fields__}, "ranks": ranks}
        )
        later = Place()
        later.incarnation, later.run_id, later.number = 2, RunId(1, 2), 2
        self.places = [*self.places, later]

    def place(self) -> Any:
        return self.places[0]

    def renewed(self) -> Any:
        self.places = self.places[1:] or self.places
        return self.places[0]

    def shards(self, question: Any) -> dict[str, Any]:
        said = asyncio.run(shard_service.answer(self, question, {}))  # type: ignore[arg-type] - as much of a shell as it needs
        if said["why"]:
            raise CheckpointError(said["why"])
        return said

    def close(self, *, wait: bool) -> None:
        self.closed = not wait
