"""`dljob plan`: the command; what it shows is drawn in `plan.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output

Form = Literal["table", "json", "yaml", "manifest"]


def plan(file: Path, /, *, form: Annotated[Form, Parameter(name=("--output", "-o"))] = "table") -> None:
    """Show which ranks run where: roles, units, bundles, machines. No cluster is needed.

    Args:
        file: YAML or JSON file.
        form: table, json, yaml, or manifest (the RayCluster that would carry the job).
    """
    from dljob.cli.commands.plan import render_plan
    from dljob.master.assign import would_be_nodes
    from dljob.plan.plan import plan as resolve
    from dljob.spec.load import load_file

    resolved = resolve(load_file(file))
    output.data(render_plan(resolved, would_be_nodes(resolved), form))
