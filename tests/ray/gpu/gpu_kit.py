"""Jobs on a GPU for the tests beside it, run by the command as its users do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from cli_kit import Place

__all__ = ["GPU", "HALF", "Place", "ended", "made", "manifest", "ran", "role"]

GPU = "accelerator: {type: GPU, count: 1}"
HALF = "accelerator: {type: GPU, count: '0.5'}"
CODE = Path(__file__).parent / "gpu_jobs.py"


def made(folder: Path) -> Place:
    """Return a folder with the code of the jobs."""
    place = Place(folder)
    shutil.copy(CODE, folder)
    return place


def role(name: str, function: str, *more: str, script: str = "") -> str:
    """Return a role that runs a function of the code; as a script if that is named."""
    entry = f"module: gpu_jobs.py}}, args: [{script}]" if script else f"class: gpu_jobs.{function}}}"
    fields = (f"name: {name}", f"entrypoint: {{{entry}", "resources: {cpu: 100m}", *more)
    return f"  - {{{', '.join(fields)}}}\n"


def manifest(place: Place, *roles: str, extra: str = "") -> Path:
    """Write a job of these roles."""
    file = place.folder / "job.yaml"
    head = "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: job}\nspec:\n"
    file.write_text(f"{head}{extra}  roles:\n{''.join(roles)}")
    return file


def ran(place: Place, *roles: str, extra: str = "", timeout: float = 150) -> dict[str, Any]:
    """Run a job to its end; return its last status, with the notes under `notes`."""
    done = place.dljob("run", manifest(place, *roles, extra=extra), timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return ended(place.entry()["folder"])


def ended(folder: Path) -> dict[str, Any]:
    """Return the last status of a job, with the notes under `notes`."""
    status = json.loads((folder / "status.json").read_text())
    notes = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return status | {"result": json.loads(status["result"]), "notes": notes}
