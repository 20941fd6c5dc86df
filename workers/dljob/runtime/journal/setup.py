"""The arguments of a PrimeMaster: the job, its plan, and facts about its surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dljob.master.state.events import Carried
from dljob.master.state.state import JobState
from dljob.master.transition import initial
from dljob.plan.model import JobPlan
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobSpec


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments of a master, parsed from its order."""

    info: JobInfo
    spec: DLJobSpec
    plan: JobPlan
    own_nodes: bool = False
    carried: Carried | None = None
    """State of the previous attempt."""
    roams: bool = False
    """Whether the job's end goes into the key-value store, too."""
    core: str = ""
    """Version of the code that decides here."""

    chosen: tuple[tuple[str, str], ...] = ()
    """(role, sentence) of resources that were chosen before the job started."""

    def initial(self, now: float) -> JobState:
        """Return the job's first state."""
        return initial(self.plan, self.spec, self.info.uid, now, own_nodes=self.own_nodes)

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return Path(self.info.dir)
