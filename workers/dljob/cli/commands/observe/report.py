"""`dljob report`: a job's page in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.errors import UsageError

OutputFile = Annotated[Path, Parameter(name=("--output", "-o"))]


def report(
    job: str,
    /,
    *,
    output_file: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("job.html"),
    force: bool = False,
) -> None:
    """Write a job's page, one HTML file that needs nothing else: where its time went, what failed, and why.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder (with a `/`), also of a copy.
        output_file: the file to write.
        force: replace a file that is there.
    """
    from dljob.report import job_folder, page
    from dljob.report.page_data import page_data

    folder = Path(job) if "/" in job else registry.find(job).folder
    text = page.html(page_data(job_folder.load(folder)))
    try:
        with output_file.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{output_file} exists", hint="choose another name with -o, or add --force") from error
    output.say(f"wrote {output_file} ({len(text.encode()) // 1000} kB)")
