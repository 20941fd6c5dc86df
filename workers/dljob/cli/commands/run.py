"""`dljob run`: a job on a Ray of its own, watched to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output


def run(
    file: Path,
    /,
    *,
    faults: Path | None = None,
    pretend: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    form: Annotated[output.DataFormat, Parameter(name=("--output", "-o"))] = "json",
) -> int:
    """Run a job on this machine, on a Ray that is started for it and gone with it.

    One raylet is started for each machine of the plan, at most 8. The file's folder is the working directory of the
    ranks and on their path. The last line on stdout is the job's result with seconds and restarts, as JSON. Ctrl-C
    stops the job.

    Args:
        file: YAML or JSON file.
        faults: YAML list of faults to inflict: {when: {step: 15}, target: rollout/1 or master, fault: kill}.
        pretend: devices that every raylet declares though this machine has none, such as NPU=8; may be repeated.
        form: json or yaml, of the result.
    """
    from dljob.cli.runner import Runner

    return Runner(file, faults, pretend, form).run()
