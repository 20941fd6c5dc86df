"""`python -m dljob.spec.generate [--check]`: write the files generated from the models, or report outdated ones.

Run it in the root of the repository. Makes crds/dljob.io_dljobs.yaml, the pages spec.md and faults.md of
docs/reference, and role_options.py of builder and plan.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dljob.errors import ExitCode
from dljob.spec.crd import GROUP, PLURAL, crd_yaml
from dljob.spec.option_code import plan_fields, setters
from dljob.spec.reference import reference
from dljob.spec.reference_faults import faults_reference


def generated() -> dict[str, str]:
    """Return path in the repository -> content of each generated file."""
    return {
        f"crds/{GROUP}_{PLURAL}.yaml": crd_yaml(),
        "docs/reference/spec.md": reference(),
        "docs/reference/faults.md": faults_reference(),
        "workers/dljob/api/role_options.py": setters(),
        "workers/dljob/plan/role_options.py": plan_fields(),
    }


def main(arguments: Sequence[str], root: Path) -> ExitCode:
    """Write the files below `root`, or with --check only compare them."""
    # Only files that differ are written, so an unchanged one keeps its time.
    stale = [path for path, text in generated().items() if _read(root / path) != text]
    if list(arguments) == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path} is out of date: run python -m dljob.spec.generate\n")
        return ExitCode.JOB_FAILED if stale else ExitCode.OK
    if arguments:
        sys.stderr.write(f"unknown arguments {' '.join(arguments)}: only --check is known\n")
        return ExitCode.USAGE
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(generated()[path], encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    return ExitCode.OK


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":  # pragma: no cover - the line that the shell runs
    sys.exit(main(sys.argv[1:], Path.cwd()))
