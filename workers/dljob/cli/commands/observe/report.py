"""`dljob report`: a job's page in one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli import output_file as files
from dljob.cli.target import HERE, JobTarget
from dljob.errors import DLJobError, UsageError

OutputFile = Annotated[Path, Parameter(name=("--output", "-o"))]


def report(
    job: str,
    /,
    *,
    place: JobTarget = HERE,
    output_file: OutputFile = Path("job.html"),
    force: Annotated[bool, Parameter(negative="")] = False,
    with_values: Annotated[bool, Parameter(negative="")] = False,
    what_if: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a job's page, one HTML file that needs nothing else: where its time went, what failed, and why.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy.
        place: this machine, or a cluster.
        output_file: the file to write.
        force: replace a file that is there.
        with_values: show the values of command, args and config; without it the spec has names alone.
        what_if: show the three rules that would have helped most, of a job that succeeded; takes some seconds.
    """
    from dljob.cli import shown_page
    from dljob.report import page

    files.refuse_existing(output_file, force=force)
    folder = place.folder("report", job)
    if what_if and not folder:
        raise UsageError("--what-if needs the job's folder, with its journal", hint="give the path of the folder")
    if folder:
        data = shown_page.of_folder(folder, time.time(), with_values=with_values)
    else:
        with place.job("report", job) as handle:
            data = shown_page.of_job(handle, job, time.time(), with_values=with_values)
    if what_if and folder:
        from dljob.report.what_if import best_what_ifs

        try:
            data["whatifs"] = best_what_ifs(folder)
        except DLJobError as error:  # the page has all else
            data["unrecorded"] = [*data["unrecorded"], f"whatifs: {error.message}"]
    size = files.write(output_file, (page.html(data),), force=force)
    output.say(f"wrote {output_file} ({size // 1000} kB)")
