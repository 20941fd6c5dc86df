"""`dljob checkpoint`: list of checkpoints, verification, and export for other tools."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import local
from dljob.errors import CheckpointError, NotFoundError, UsageError
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.listing import CheckpointRow, rows, worlds
from dljob.telemetry.wording import counted, moment

MIB = 1 << 20


def checkpoint(
    action: Literal["ls", "verify", "export"],
    source: str,
    out: Path | None = None,
    /,
    *,
    to: Literal["safetensors", "dcp"] | None = None,
    world: str | None = None,
    step: int | None = None,
    rank: int = 0,
    only: str = "",
    trust: Annotated[bool, Parameter(negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> int:
    """List or verify checkpoints, or export one for other tools; no running job is needed.

    `ls` lists checkpoints. `verify` reads every byte, and exits with 1 if one is damaged, or of a later
    dljob. Neither unpickles anything.
    `export` writes one rank's state to OUT; sharded tensors are assembled from all ranks.

    Args:
        action: ls, verify or export.
        source: a folder with checkpoints in it or below it, or a job of this machine, by name or uid.
        out: for export: file (safetensors) or folder (dcp) to write; it must not exist.
        to: for export: safetensors (tensors, arrays) or dcp (PyTorch's distributed checkpoint; numbers and text too).
        world: only this role, or rank of a role (`rollout/3`), as shown by ls.
        step: only this step; default for export: the newest valid one.
        rank: for export: rank whose state is written.
        only: for export: one part of the state, such as model or optimizer.state.
        trust: for export: import the state's classes that are not containers, numbers, text, tensors or arrays.
        form: table, json or yaml, for ls and verify.
    """
    if action != "export":
        if out is not None or to is not None or trust or only:
            raise UsageError(f"OUT, --to, --trust and --only are for export, not for {action}")
        return _show(source, world, step, form, read_all=action == "verify")
    if out is None or to is None:
        raise UsageError(
            "export needs a target", hint="dljob checkpoint export SOURCE OUT --to safetensors, or --to dcp"
        )
    folder = _only_world(source, world)
    row = _counting(folder, step)
    # Only an export needs torch: `ls` and `verify` work on any machine that sees the files.
    if find_spec("torch") is None:
        raise UsageError("an export needs torch", hint="pip install 'dljob[torch]'")
    from dljob.runtime.checkpoint import export

    try:
        state = export.read_state(folder, row.mark, rank, trust=trust, say=output.say)
        names = export.write(export.selected(state, only), out, to)
    except OSError as error:
        raise CheckpointError(f"{row.mark} is not exported: {error.strerror or error} ({out})") from error
    whose = f"rank {rank} of {row.ranks}" if row.ranks > 1 else "the rank"
    output.say(f"{row.mark}, as {whose} saved it: {counted(len(names), 'entry', plural='entries')} in {out}")
    return 0


def _show(source: str, world: str | None, step: int | None, form: output.TableFormat, *, read_all: bool) -> int:
    shown = list[CheckpointRow]()
    damaged = list[str]()
    for name, folder in _worlds(source, world):
        shown += [row for row in rows(name, folder, read_all=read_all) if step in (None, row.mark.step)]
        records = folder.records()
        damaged += [f"{name}: {text}" for text in (*records.damaged, *records.newer)]
    if form == "table":
        head = ("WORLD", "STEP", "RUN", "RANKS", "SIZE", "SAVED", "STATE")
        output.table([head, *(_cells(row) for row in shown)])
    else:
        output.structured([_data(row) for row in shown], form)
    for row in shown:
        if row.reason and form == "table":
            output.say(f"{row.world}: {row.mark}: {row.reason}")
    for text in damaged:
        output.say(text)
    # Only `verify` read everything; a state that `ls` shows is no verdict.
    return int(any(row.state in ("damaged", "newer") for row in shown) or bool(damaged)) if read_all else 0


def _cells(row: CheckpointRow) -> tuple[str, ...]:
    step = f"{row.mark.step}" + (f" r{row.mark.revision}" if row.mark.revision else "")
    saved = "-" if row.saved_at is None else moment(row.saved_at)
    size = f"{row.size / MIB:.1f} MiB"
    return row.world, step, str(row.mark.run_id), str(row.ranks or "-"), size, saved, row.state


def _data(row: CheckpointRow) -> Mapping[str, Any]:
    mark, saved = row.mark, row.saved_at
    return {
        "world": row.world, "step": mark.step, "revision": mark.revision, "run": str(mark.run_id), "ranks": row.ranks,
        "bytes": row.size, "savedAt": None if saved is None else moment(saved), "state": row.state,
        "why": row.reason,
    }  # fmt: skip


def _counting(folder: Folder, step: int | None) -> CheckpointRow:
    """Return the newest valid checkpoint. Raises NotFoundError."""
    for row in rows("", folder):
        if row.state == "whole" and step in (None, row.mark.step):
            return row
    step_text = "" if step is None else f" of step {step}"
    raise NotFoundError(f"no checkpoint{step_text} is valid", hint="see dljob checkpoint verify")


def _worlds(source: str, world: str | None) -> list[tuple[str, Folder]]:
    """Return the selected worlds. Raises NotFoundError."""
    root = Path(source)
    # A folder first: it may be that of any job, such as a cluster's on a mounted volume.
    if not root.is_dir():
        root = local("checkpoint", source).dir / "checkpoints"
    all_worlds = worlds(root)
    chosen_worlds = [(name, folder) for name, folder in all_worlds if world in (None, name)]
    if not chosen_worlds:
        names = ", ".join(name for name, _ in all_worlds)
        hint = f"--world is one of: {names}" if names else "spec.checkpoint.path says where a job on a cluster saves"
        raise NotFoundError(f"no checkpoints in {root}" if not names else f"no world {world} in {root}", hint=hint)
    return chosen_worlds


def _only_world(source: str, world: str | None) -> Folder:
    chosen_worlds = _worlds(source, world)
    # An export has one target; choosing a world for the user could export the wrong one unnoticed.
    if len(chosen_worlds) > 1:
        names = ", ".join(name for name, _ in chosen_worlds)
        raise UsageError(f"export of which world? There are {names}", hint="add --world")
    return chosen_worlds[0][1]
