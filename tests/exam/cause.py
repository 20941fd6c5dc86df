"""A planted cause: what a user runs, what is done to it, and what `dljob why` must say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from running_job import RunningJob

GROUPS = ("user code", "libraries", "machine", "disks", "network", "Ray's parts", "Kubernetes", "nothing wrong")
"""Where causes lie, in the order of the table; nothing may be blamed for jobs of the last group."""
MARK = "# CAUSE"
"""A comment at the line of the user's code that `why` must name."""


@dataclass(frozen=True)
class Act:
    """What is done from outside while the job runs; `planting.py` makes them."""

    do: Callable[[RunningJob], None]
    after: str
    """A regular expression: done once it is found in what the command has printed, lines of ranks included."""
    delay_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One planted cause. fresh.py has the fields in the words of somebody who writes them."""

    name: str
    group: str
    program: str
    kind: str
    """Reasons (`UserError|ImportError`), or words in lower case of which one must be said; empty: nothing failed."""
    code: tuple[int, ...] = ()
    """Exit codes of `dljob why` that are right; empty: any but 0."""
    whom: str = ""
    """A regular expression for the rank or the part that is blamed."""
    says: tuple[str, ...] = ()
    """Regular expressions, each of which the first cause and its evidence must contain."""
    advice: str = ""
    """A regular expression that the advice must contain."""
    never: str = ""
    """A regular expression for innocents: none of them may stand in the first cause."""
    ranks: int = 1
    """Ranks of `dljob torchrun`, which runs `program` as train.py."""
    flags: tuple[str, ...] = ()
    roles: str = ""
    """The lines below `roles:` of a DLJob; `dljob run` runs it, and `program` is work.py."""
    spec: str = ""
    """Further lines below `spec:`."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other files of the user's folder."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    before: str = ""
    """A command of the shell in the user's folder, before the job starts."""
    acts: tuple[Act, ...] = ()
    ends: bool = True
    """The job ends by itself: `why` is asked behind its end; otherwise while it runs, until it tells something."""
    starts_s: float = 120.0
    """Until a rank prints its first line; of a cause that lets none start: until `why` is asked."""
    limit_s: float = 90.0
    """Until the job must have ended, or `why` must have said something, counted from the first line of a rank."""
    exit_code: int | None = None
    """What the command of the job must end with."""
    disk: str = ""
    """Size of a file system of its own, mounted at ./disk of the user's folder, such as `20m`."""
    home: str = ""
    """Folder of the job folders, below the user's folder; empty: one beside it."""
    cgroup: Mapping[str, str] = field(default_factory=dict[str, str])
    """Limits of a control group, such as `pids/pids.max`; its folders are in EXAM_PIDS, EXAM_MEMORY and EXAM_CPU."""
    limited: bool = False
    """The command itself runs in that group; otherwise a program joins it."""
    peers: bool = False
    """The same program says something under torchrun, Ray Train and plain Ray."""
    missing: Callable[[], str] = str
    """Says what this machine lacks for the cause; empty: nothing."""
