"""`dljob torchrun` on a Ray that runs, against `torchrun`: four gloo ranks to a first step, and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import APPS, Entries, Row, cluster, folder, runs, say, settle
from bench_jobs import stamp

RANKS = 4
WORDS = [f"--nproc-per-node={RANKS}", "--max-restarts=3", "torchrun_script.py"]
ENDS_S = 120.0
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""torchrun's ranks meet again in the store that they met in before, where gloo finds the dead's addresses: with torch
2.15 no restart comes up (pytorch issue 135712). Each life with a store of its own does; ours needs no such switch."""


def once(command: list[str], number: int, env: Mapping[str, str] | None = None) -> tuple[float, float]:
    """(Start -> first step of all ranks, SIGKILL of one -> next first step of all), in seconds.

    Raises:
        RuntimeError: it did not end well; with the end of what it said.
    """
    with folder() as out:
        entries, log = Entries(out / "said"), out / "log"
        with log.open("wb") as said:
            begin = stamp()
            made = subprocess.Popen(
                [*command, *WORDS, str(entries.where)],
                cwd=APPS,
                env={**os.environ, **(env or {})},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        try:
            first = entries.await_count(RANKS)[-1]["t"]
            victim = entries.last_of("w", number % RANKS)
            killed = stamp()
            os.kill(victim["pid"], signal.SIGKILL)
            again = max(entries.next_of("w", rank, killed)["t"] for rank in range(RANKS))
            (entries.where / "go").touch()
            code = made.wait(ENDS_S)
        except TimeoutError as error:
            raise RuntimeError(f"{' '.join(command)}: {error}: {tail(log)}") from error
        finally:
            if made.poll() is None:
                made.kill()
                made.wait()
        if code:
            raise RuntimeError(f"{' '.join(command)} ended with {code}: {tail(log)}")
    return first - begin, again - killed


def tail(log: Path) -> str:
    """The end of what a program said."""
    return log.read_text(errors="replace")[-2000:]


def main() -> None:
    """Two rows."""
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    with cluster(2 * RANKS) as ray:
        plain = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        here = [sys.executable, "-m", "dljob.cli", "torchrun", "--to", ray.address]
        for number in range(runs(7)):
            theirs.append(once(plain, number, OWN_STORE))
            ours.append(once(here, number))
            settle()
            (a, b), (c, d) = theirs[-1], ours[-1]
            say(f"  run {number + 1}: start {a:.2f} {c:.2f} s; again {b:.2f} {d:.2f} s (torchrun, dljob)")
    rows = (
        ("torchrun-start", "`dljob torchrun` on a running Ray, start -> first step of 4 gloo ranks", 1.5),
        ("torchrun-again", "the same, SIGKILL of one rank -> first step of all 4 again", 0.5),
    )
    for at, (name, what, factor) in enumerate(rows):
        we, they = [pair[at] for pair in ours], [pair[at] for pair in theirs]
        Row(
            name,
            what,
            f"<= {factor} x torchrun",
            median(we),
            factor * median(they),
            samples={"dljob": we, "torchrun": they},
            note=f"{median(we) / median(they):.2f} x torchrun",
        ).emit()


if __name__ == "__main__":
    main()
