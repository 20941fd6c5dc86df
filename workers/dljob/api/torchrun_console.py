"""Console of `dljob torchrun`: which lines of ranks torchrun's log options show, and in which form."""

from __future__ import annotations

import argparse
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field

from dljob.api.torchrun_line import spelled
from dljob.errors import UsageError

PREFIX = "[${role_name}${local_rank}]:"
"""torchrun's own prefix with `--tee`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Value of `--redirects` or `--tee`: all local ranks, or some."""

    everyone: bool = False
    some: Mapping[int, bool] = field(default_factory=dict[int, bool])

    def __contains__(self, local_rank: int) -> bool:
        return self.some.get(local_rank, False) or self.everyone


def chosen(argument: str, streams: str) -> Chosen:
    """Parse `3`, or `0:3,1:0` by local rank; 1 (stdout), 2 (stderr) and 3 all mean both streams.

    Args:
        argument: the option's name, for the message.
        streams: its value.

    Raises:
        UsageError: the value has neither form.
    """
    # A rank's log holds both streams, so 1 and 2 cannot be told from 3.
    if re.fullmatch("[0-3]", streams):
        return Chosen(everyone=streams != "0")
    if not re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", streams):
        raise UsageError(f"{argument}={streams} is neither 0 to 3 nor RANK:0 to 3", hint=f"write {argument}=0:3,1:3")
    pairs = (pair.split(":") for pair in streams.split(","))
    return Chosen(some={int(rank): std != "0" for rank, std in pairs})


@dataclass(frozen=True, slots=True)
class Console:
    """Filter and format of the ranks' lines; `ranks_per_node` turns ranks into local ranks."""

    ranks_per_node: int
    redirects: Chosen = Chosen()
    tee: Chosen = Chosen()
    template: str = PREFIX
    only: frozenset[int] = frozenset()
    """Local ranks to show; empty: all."""
    role: str | None = None
    """--role as given: the role's own name is in lower case, and never empty."""
    hostname: str = ""

    def prefix(self, role: str, rank: int) -> str | None:
        """Return the text before each line of a rank on the console; None when its lines are only in the log."""
        # Ranks are numbered machine by machine, as in torchrun.
        local = rank % self.ranks_per_node
        tee = local in self.tee
        # torchrun's rule: the filter hides a rank altogether; --redirects only if --tee does not show it.
        if (self.only and local not in self.only) or (local in self.redirects and not tee):
            return None
        if not tee:
            return ""
        known = {
            "role_name": role if self.role is None else self.role,
            "rank": str(rank),
            "local_rank": str(local),
            "hostname": self.hostname,
        }
        # `safe_`: an unknown placeholder in the template stays as it is; it must not end the output.
        return string.Template(self.template).safe_substitute(known)


def console(line: argparse.Namespace, ranks_per_node: int, hostname: str) -> Console:
    """Return the console that a command line asks for.

    Args:
        line: the command line.
        ranks_per_node: the number of ranks on each machine.
        hostname: the host of all ranks; empty when they are on other machines.

    Raises:
        UsageError: an option is malformed, or cannot be met here.
    """
    only = str(line.local_ranks_filter)
    if only and not re.fullmatch(r"\d+(,\d+)*", only):
        raise UsageError(
            f"{spelled(line, 'local-ranks-filter')}={only} is no list of local ranks",
            hint="write --local-ranks-filter=0,1",
        )
    template = str(line.log_line_prefix_template or PREFIX)
    if not hostname and re.search(r"\$(hostname\b|{hostname})", template):
        raise UsageError(
            f"{spelled(line, 'log-line-prefix-template')}={template}: the machine of a line is not known here",
            hint="leave ${hostname} out; dljob status says where each rank is",
        )
    return Console(
        ranks_per_node,
        chosen(spelled(line, "redirects"), line.redirects),
        chosen(spelled(line, "tee"), line.tee),
        template,
        frozenset(int(rank) for rank in only.split(",") if rank),
        str(line.role),
        hostname,
    )
