"""What the three wheels of this repository hold, and the long description of the first.

`dljob` runs in a job's pods and is the command; `dljob-operator` is the operator; `dljob-tools` looks back, converts,
simulates and imitates others. All three have one version, and share the import package `dljob`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent
PICTURE = re.compile(r"(!\[[^\]]*\]\()(?![a-z]+:)([^)]+)\)")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")
OPERATOR = ("dljob_operator/", "dljob/reconcile/")
TOOLS = (
    *("dljob/compat/", "dljob/convert/", "dljob/report/", "dljob/runtime/yr/", "dljob/testing/"),
    *(f"dljob/cli/commands/{name}.py" for name in ("accelerate", "convert", "dlrover_run", "sim")),
    *(f"dljob/cli/commands/observe/{name}.py" for name in ("advise", "job_trace", "open", "replay", "report")),
    *("dljob/cli/shown_page.py", "dljob/cli/yr_runner.py", "dljob/cli/kubernetes/runtimes.py"),
    "dljob_operator/testing/",
)
BASE = (
    "dljob/reconcile/__init__.py",
    *(f"dljob/reconcile/state/{name}.py" for name in ("__init__", "fields", "names")),
)
"""Of the operator's folder, what the command needs too."""


def wheel_of(path: str) -> str:
    """Return the wheel that holds a file, by its path in site-packages."""
    if path.startswith(TOOLS):
        return "dljob-tools"
    return "dljob-operator" if path.startswith(OPERATOR) and path not in BASE else "dljob"


class WheelFiles(BuildHookInterface):
    """The files of one wheel, by its name; an editable installation has the folders instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Choose the files."""
        if version == "editable":
            return
        for folder in (ROOT / "workers", ROOT / "operator"):
            for file in sorted(folder.glob("dljob*/**/*")):
                name = file.relative_to(folder).as_posix()
                if file.is_file() and "__pycache__" not in name and wheel_of(name) == self.metadata.name:
                    build_data["force_include"][str(file)] = name


class LongDescription(MetadataHookInterface):
    """What a registry shows of the package; it has no files beside the page."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        files = metadata["urls"]["Homepage"] + "/blob/main"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = PICTURE.sub(rf"\g<1>{metadata['urls']['Homepage']}/raw/main/\2)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(rf"]({files}/\1)", text)}
