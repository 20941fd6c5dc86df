"""Whole logs of a job, where its checkpoints are: on a volume that this machine may have mounted as well, or not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dljob.runtime import kept_logs

_FILE = re.compile(r"(.+)-(\d+)\.(\d+)\.log")
_ATTEMPT = re.compile(r"attempt-(\d+)")


def place(job: Mapping[str, Any]) -> Path | None:
    """The folder with an attempt's folders; None for a job without a checkpoint path, or with a cluster of others."""
    spec, meta = job["spec"], job["metadata"]
    checkpoint: Mapping[str, str] = spec.get("checkpoint") or {}
    path = checkpoint.get("path", "")
    if not path or spec.get("rayClusterRef"):
        return None
    return kept_logs.root(path, meta["name"], meta["uid"]) / "logs"


def told(job: Mapping[str, Any]) -> str:
    """Where the whole logs are, in words; empty: nowhere."""
    folder = place(job)
    if folder is None:
        return ""
    claim = job["spec"]["checkpoint"].get("claimName")
    where = f"on claim {claim}" if claim else "in its pods, if that is a volume"
    return f"each process's whole log is {where}: {folder}/attempt-<n>/<role>-<rank>.<incarnation>.log"


def read(job: Mapping[str, Any], ranks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """All that these ranks wrote, attempt after attempt; empty where this machine does not have the volume."""
    folder = place(job)
    found: list[tuple[int, str, int, int, Path]] = []
    for path in folder.glob("attempt-*/*.log") if folder else ():
        attempt, name = _ATTEMPT.fullmatch(path.parent.name), _FILE.fullmatch(path.name)
        if attempt and name:
            found.append((int(attempt[1]), name[1], int(name[2]), int(name[3]), path))
    wanted = set(ranks)
    texts: dict[tuple[str, int], str] = {}
    for _, role, rank, _, path in sorted(found):
        if (role, rank) in wanted:
            texts[role, rank] = texts.get((role, rank), "") + path.read_text(encoding="utf-8", errors="replace")
    return texts
