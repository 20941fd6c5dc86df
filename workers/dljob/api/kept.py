"""What is left of a job, by a path: its folder, a copy of it, or an object of the cluster in a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dljob.api import registry
from dljob.api.local import views
from dljob.api.shown_job import JobAccounts, Overview
from dljob.errors import NotFoundError
from dljob.linux.plain_files import parse_json, read_json, read_plain
from dljob.spec.text.tree import TooLargeError, bounded_yaml
from dljob.telemetry.wording import unix

Json = Mapping[str, Any]
_FILE_BYTES = 4 << 20
"""Most bytes of a file with an object of the cluster, whose etcd takes 1.5 MiB of JSON."""
_HINT = "a job's folder, or a file with its DLJob or its ConfigMap of logs: kubectl get configmap JOB-logs -o yaml"


def accounts(path: Path) -> JobAccounts:
    """Return a job's status and spec.

    Raises:
        NotFoundError: there is no job at that path.
    """
    return _in_file(path) if path.is_file() else JobAccounts(overview(path), views.spec(path))


def command_target(path: Path, job: Overview) -> tuple[str, str]:
    """Return by which name or folder, as a word of a shell, later commands find a job, and their flags after a blank.

    Commands about an object of the cluster in a file ask the cluster, where the object may still be.
    """
    if not path.is_file():
        return shlex.quote(os.path.join(path, "")), ""  # noqa: PTH118
    namespace = job.data.get("namespace")
    return str(job.data["name"]), f" -n {namespace}" if namespace else " --kubernetes"


def overview(folder: Path) -> Overview:
    """Return a job in detail by its folder alone; of one that never started, what its entry says.

    Raises:
        NotFoundError: there is no job's folder at that path.
    """
    try:
        return views.in_folder(folder)
    except NotFoundError:
        if never := _never_started(folder):
            return never
        raise


def begun(folder: Path) -> float:
    """Return the time from which a folder's timeline counts, in unix seconds: the job's submission, else its start.

    Raises:
        NotFoundError: there is no job's folder at that path.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):  # a copy may lack it, and its status tells the start
        return float(read_json(folder / "job.json")["started"])
    return unix(views.in_folder(folder).status.get("startTime")) or 0.0


def _never_started(folder: Path) -> Overview | None:
    """Return a job that has an entry and no status; None: there is no entry, or a damaged status."""
    if (folder / "status.json").exists():
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):  # the caller says that this is no job's folder
        entry = read_json(folder / "job.json")
        record = registry.RegistryEntry(str(entry["name"]), str(entry["uid"]), str(folder))
        overview = views.overview(record, {"name": record.name, "uid": record.uid, "phase": "Pending"})
        return replace(overview, unseen="it never started: its folder has no status of PrimeMaster")
    return None


def _in_file(file: Path) -> JobAccounts:
    from ruamel.yaml.error import YAMLError

    try:
        # JSON is YAML too.
        text = bounded_yaml().load(read_plain(file, _FILE_BYTES).decode("utf-8"))
        body: Json = cast("Json", text) if isinstance(text, Mapping) else {}
        if body.get("kind") == "DLJob" and "uid" not in body.get("metadata", {}):
            hint = f"dljob validate {shlex.quote(str(file))}; dljob status lists jobs"
            raise NotFoundError(f"{file} is a job file, and no record of a job", hint=hint)
        accounts = _object(body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError, TooLargeError) as error:
        error_text = " ".join(str(error).split())
        raise NotFoundError(f"{file}: no job: {type(error).__name__}: {error_text}", hint=_HINT) from error
    if accounts is None:
        raise NotFoundError(f"{file}: neither a DLJob nor a ConfigMap with a job's last status", hint=_HINT)
    return accounts


def _object(body: Json) -> JobAccounts | None:
    if body.get("kind") == "DLJob":
        from dljob.api.kubernetes import views as on_kubernetes

        return JobAccounts(on_kubernetes.overview(body), body["spec"])
    if body.get("kind") != "ConfigMap" or "status.json" not in body["data"]:
        return None
    status = parse_json(body["data"]["status.json"])
    record = registry.RegistryEntry(str(status["name"]), str(status["uid"]), "")
    overview = views.overview(record, status)
    return JobAccounts(
        replace(overview, data={**overview.data, "namespace": body.get("metadata", {}).get("namespace")}), {}
    )
