"""Whole logs of a job, kept beside its checkpoints on a volume, which this machine may have mounted too."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dljob.api.logs import LogTail
from dljob.logs import archive

_FILE = re.compile(r"(.+)-(\d+)\.(\d+)\.log")
_ATTEMPT = re.compile(r"attempt-(\d+)")


def place(job: Mapping[str, Any]) -> Path | None:
    """Return the folder of all attempts; None for a job without a checkpoint path, or on a RayCluster not its own."""
    spec, meta = job["spec"], job["metadata"]
    checkpoint: Mapping[str, str] = spec.get("checkpoint") or {}
    path = checkpoint.get("path", "")
    if not path or spec.get("rayClusterRef"):
        return None
    return archive.root(path, meta["name"], meta["uid"]) / "logs"


def whereabouts(job: Mapping[str, Any]) -> str:
    """Describe where the whole logs are; empty when there are none."""
    folder = place(job)
    if folder is None:
        return ""
    claim = job["spec"]["checkpoint"].get("claimName")
    volume_text = f"on claim {claim}" if claim else "in its pods, if that is a volume"
    return f"each process's whole log is {volume_text}: {folder}/attempt-<n>/<role>-<rank>.<incarnation>.log"


def files(job: Mapping[str, Any], ranks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Path]]:
    """Return the logs of ranks, in order of attempts; empty when this machine does not have the volume."""
    folder = place(job)
    log_files: list[tuple[int, str, int, int, Path]] = []
    for path in folder.glob("attempt-*/*.log") if folder else ():
        attempt, name = _ATTEMPT.fullmatch(path.parent.name), _FILE.fullmatch(path.name)
        if attempt and name:
            log_files.append((int(attempt[1]), name[1], int(name[2]), int(name[3]), path))
    rank_keys = set(ranks)
    paths_by_rank: dict[tuple[str, int], list[Path]] = {}
    # By attempt and incarnation, as they were written.
    for _, role, rank, _, path in sorted(log_files):
        if (role, rank) in rank_keys:
            paths_by_rank.setdefault((role, rank), []).append(path)
    return paths_by_rank


def pieces(paths: Iterable[Path]) -> Iterator[str]:
    """Yield all data of logs, at least one text for each; parts cut out of their middle are skipped."""
    for path in paths:
        # A character may lie across the end of a piece.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        yield from map(decoder.decode, LogTail("", 0, path).pieces())
        yield decoder.decode(b"", final=True)
