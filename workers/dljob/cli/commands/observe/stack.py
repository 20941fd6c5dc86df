"""`dljob stack`: stacks of a job's ranks."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.telemetry.wording import counted

_LIBRARY = re.compile(r"\((?:<|[^:]*/(?:site-packages|dist-packages|lib/python3\.\d+|workers/dljob)/)")
"""In a frame, the file of a library, of Python or of dljob."""

AWAITS = "an async method awaits something; of a stall dljob why tells that line"
"""A coroutine that awaits is on no thread's stack."""

Form = Literal["text", "json", "yaml"]


def stack(
    job: str,
    target: str = "job",
    /,
    *,
    place: JobTarget = HERE,
    all_threads: Annotated[bool, Parameter(name="--all", negative="")] = False,
    form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text",
) -> None:
    """Show where threads of a running job's ranks are in the user's code, without stopping them.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        place: this machine, or a cluster.
        all_threads: show every thread whole, also those of libraries and of dljob.
        form: text, json or yaml: each rank with the stacks of all threads.
    """
    with place.job("stack", job) as target_job:
        stacks = target_job.stacks(target)
    if form != "text":
        output.structured(stacks, form)
        return
    for rank, text in stacks.items():
        output.data(f"== {rank}\n{text.rstrip() if all_threads else users_threads(text)}")


def users_threads(text: str) -> str:
    """Return the stacks of the threads that run the user's code, without what called it, and how many others there are.

    Frames of dljob in which that code waits, as for a call, are one row.

    A text without threads, which says why there are none, is returned as it is.
    """
    threads = re.split(r"^(?=thread )", text.rstrip(), flags=re.MULTILINE)
    head, shown = threads[0], list[str]()
    for thread in threads[1:]:
        title, *frames = thread.rstrip().splitlines()
        users_frames = [number for number, frame in enumerate(frames) if "(" in frame and not _LIBRARY.search(frame)]
        if users_frames:
            inner, rest = frames[: users_frames[0]], frames[users_frames[0] : users_frames[-1] + 1]
            if any("dljob/" in frame for frame in inner):
                inner = [f"    ... {counted(len(inner), 'frame')} of dljob in which it waits: --all shows them"]
            shown.append("\n".join([title, *inner, *rest]))
    others = len(threads) - 1 - len(shown)
    more = f"{counted(others, 'thread')} of libraries: --all shows them" if others else ""
    if others and not shown:
        more = f"no thread is in your code: the rank is idle, or {AWAITS}\n{more}"
    return "\n".join([*([head.rstrip()] if head else []), *shown, *([more] if more else [])])
