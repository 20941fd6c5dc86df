"""The table of README, made of the kept figures: each number is the median that docs/benchmarks.md has.

python tests/bench/readme_table.py    # write the table again
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import figures  # noqa: E402 - found by the path above
import peer_samples  # noqa: E402 - found by the path above

PAGE = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
HEAD = ("| on two cores | figure | script |", "| --- | --- | --- |")


@dataclass(frozen=True)
class Ref:
    """A figure that is kept: of a script, the first row whose name begins so. `sample`: of which; empty: its figure."""

    script: str
    what: str
    sample: str = ""

    def value(self, kept: figures.Kept) -> float:
        """Return the median.

        Raises:
            LookupError: There is no such row or sample.
        """
        rows = [row for row in kept[self.script]["rows"] if row["what"].startswith(self.what)]
        if not rows:
            raise LookupError(f"{self.script}: no row begins with {self.what!r}")
        return median(rows[0]["samples"][self.sample]) if self.sample else float(rows[0]["measured"].split()[0])


@dataclass(frozen=True)
class Ratio:
    """A figure in multiples of another one."""

    of: Ref
    to: Ref

    def value(self, kept: figures.Kept) -> float:
        """Return the ratio of the medians."""
        return self.of.value(kept) / self.to.value(kept)


@dataclass(frozen=True)
class Goodput:
    """Goodput of a peer in percent."""

    peer: str

    def value(self, _kept: figures.Kept) -> float:
        """Return the median of its runs."""
        samples = peer_samples.known(peer_samples.FIGURES)
        return 100 * median(one.value for one in samples if (one.row, one.peer) == ("goodput", self.peer) and one.value)


PLAIN, ALONE, AGAIN = "round trip", "SIGKILL one worker, ", "SIGSTOP of one rank of a 4-rank gloo group"
MAP, SUBMIT = "calls a second from 8 callers", "`submit()` on a running Ray -> last of 16"
ROWS: tuple[tuple[str, str, str, tuple[Ref | Ratio | Goodput, ...]], ...] = (
    (
        "a worker is killed with a spare available: time until its rank runs user code again",
        "{} s",
        "restart",
        (Ref("restart", f"{ALONE}spare"),),
    ),
    (
        "the same without a spare: a new process of Ray, forked; with torch imported",
        "{} s; {} s",
        "restart",
        (Ref("restart", f"{ALONE}no spare, no torch"), Ref("restart", f"{ALONE}no spare, torch imported")),
    ),
    (
        "submission to the last of 16 workers in user code, on a running Ray; 18 actors of bare Ray",
        "{} s; {} s",
        "submit",
        (Ref("submit", SUBMIT, "dljob"), Ref("submit", SUBMIT, "bare")),
    ),
    (
        "a call between roles on one machine; calls a second of 8 callers by `Rank.map`; against plain Ray actors",
        "{} x; {} x",
        "calls",
        (
            Ratio(Ref("calls", PLAIN, "dljob"), Ref("calls", PLAIN, "plain")),
            Ratio(Ref("calls", MAP, "dljob"), Ref("calls", MAP, "plain")),
        ),
    ),
    (
        "goodput of a script of 4 ranks, 10 faults in 10 minutes; elastic_launch, torchrun (8); Ray Train; DLRover",
        "{} %; {} %, {} %; {} %; {} %",
        "bench_peers",
        (Goodput("dljob"), Goodput("elastic_launch"), Goodput("torchrun"), Goodput("Ray Train"), Goodput("DLRover")),
    ),
    (
        "PrimeMaster is killed with 16 workers running: restarted workers, lost calls; until it commands again",
        "0, 0; {} s",
        "failover",
        (Ref("failover", "SIGKILL PrimeMaster"),),
    ),
    (
        "one of four gloo ranks is killed, in-process restart with a spare available: time until all four train again",
        "{} s",
        "inprocess",
        (Ref("inprocess", "SIGKILL one rank"),),
    ),
    (
        "one of four gloo ranks of a torchrun script is stopped: time until it is named; until all four train again",
        "{} s; {} s",
        "hang",
        (Ref("hang", f"{AGAIN} -> culprit"), Ref("hang", f"{AGAIN} (script)")),
    ),
    (
        "a raylet is killed; a machine freezes, with a spare node available: time until its ranks run user code there",
        "{} s; {} s",
        "node",
        (Ref("node", "raylet killed"), Ref("node", "node frozen")),
    ),
    (
        "goodput of the example in 5 minutes: a crash every 20 s, a master's death, a frozen and a lost node",
        "{} of all rank-seconds",
        "goodput",
        (Ref("goodput", "grpo-tiny"),),
    ),
)
"""What, how its figures are written, the script, and the figures."""


def path(script: str) -> Path:
    """Return a script's path from the root."""
    found = HERE / "peers" / f"{script}.py" if script == "bench_peers" else figures.script(script)
    return found.relative_to(PAGE.parent)


def table(kept: figures.Kept) -> str:
    """Return the table."""
    lines = [*HEAD]
    for what, form, script, refs in ROWS:
        words = form.format(*(f"{ref.value(kept):.2g}" for ref in refs))
        lines.append(f"| {what} | {words} | [{script}.py]({path(script)}) |")
    return "\n".join(lines)


def rendered(page: str, kept: figures.Kept) -> str:
    """Return the page with the figures as they are kept."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(kept)}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(), figures.known()))
