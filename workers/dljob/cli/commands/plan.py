"""`dljob plan`: preview of a job's placement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output

Form = Literal["table", "json", "yaml", "svg", "manifest"]


def plan(file: Path, /, *, form: Annotated[Form, Parameter(name=("--output", "-o"))] = "table") -> None:
    """Show which ranks run where: roles, units, bundles, machines. No cluster is needed.

    Args:
        file: YAML or JSON file.
        form: table, json, yaml, svg (a drawing of the machines), or manifest (the RayCluster as far as the file
            determines it).
    """
    from dljob.cli.job_file import sizes_here, with_resources
    from dljob.cli.placement import render_plan
    from dljob.master.start.assign import would_be_nodes
    from dljob.plan.plan import plan as resolve
    from dljob.plan.tools import TOOLS_PACKAGE, roles_with_tools
    from dljob.raycluster.acceptance import misfits
    from dljob.raycluster.render import preview_raycluster
    from dljob.spec.loading.load import load_file
    from dljob.spec.text.emit import to_yaml

    manifest = with_resources(load_file(file, rules=misfits))
    resolved = resolve(manifest)
    if form == "manifest":
        output.document(to_yaml(preview_raycluster(resolved, manifest)))
    else:
        output.document(render_plan(resolved, would_be_nodes(resolved), form))
        for line in sizes_here(resolved):
            output.say(line)
        if roles := roles_with_tools(manifest.spec):
            output.say(f"role {', '.join(roles)} runs {TOOLS_PACKAGE}: each machine needs dljob[tools]")
