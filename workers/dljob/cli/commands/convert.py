"""`dljob convert`: manifests of other operators as DLJobs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.output_file import refuse_existing, write
from dljob.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dljob.convert.manifest import RuntimeRef


def convert(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    to: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
    diff: bool = False,
    command: str | None = None,
    workdir: str | None = None,
    runtime: tuple[Path, ...] = (),
    kubernetes: bool = False,
    context: str | None = None,
    namespace: Annotated[str | None, Parameter(name=("--namespace", "-n"))] = None,
) -> ExitCode:
    """Turn RayJobs, PyTorchJobs, TrainJobs, JobSets and ElasticJobs into DLJobs, and report each field.

    Comments stay with their fields, other objects of the file are passed on, and Secrets are only named. The report
    goes to stderr: fields that are harmless here or not carried, with line and reason. Exits with 2 when a job of the
    file cannot be converted, or its DLJob would be refused; the rest is written.

    Args:
        file: YAML or JSON file; -: stdin.
        to: file to write; left out: stdout.
        force: replace the file that is there, with all that was changed in it by hand.
        diff: show the lines of the file beside what became of them, and write nothing.
        command: program for a manifest that names none: a RayCluster, or a container that runs its image's own.
        runtime: file with the training runtime that a TrainJob names; may be repeated.
        kubernetes: read the training runtimes of TrainJobs from the kubeconfig's cluster.
        context: read them from the cluster of this context.
        namespace: namespace of runtimes whose TrainJob names none; left out: that of the context.
        workdir: folder of the image in which the program starts; left out: the job's folder.
    """
    from dljob.convert import manifest, report, source

    if to is not None and not diff:
        refuse_existing(to, force=force)
    text, name = _read(file)
    runtimes = [
        piece for path in runtime for piece in manifest.training_runtimes_in(source.read_documents(_read(path)[0]))
    ]
    if kubernetes or context or namespace:
        runtimes += _of_cluster(manifest.find_runtime_refs(text), context, namespace)
    options = manifest.ConvertOptions(tuple(shlex.split(command or "")), workdir or "", tuple(runtimes))
    pieces = manifest.convert(text, name, options)
    if diff:
        output.document("\n".join(report.diff(text, pieces)))
    elif text_of_jobs := report.converted_text(pieces):
        if to is None:
            output.document(text_of_jobs.removesuffix("\n"))
        else:
            write(to, [text_of_jobs], force=force)
    for line in report.lines(pieces, name):
        output.say(line)
    refused = any(isinstance(piece, manifest.RefusedManifest) for piece in pieces)
    wrong = refused or any(piece.problems for piece in pieces if isinstance(piece, manifest.ConvertedJob))
    return ExitCode.USAGE if wrong else ExitCode.OK


def _of_cluster(refs: Sequence[RuntimeRef], context: str | None, namespace: str | None) -> list[dict[str, Any]]:
    from dljob.api.kubernetes.connect import ask
    from dljob.cli.kubernetes.runtimes import read

    return ask(lambda kube: read(kube, refs, namespace), context)


def _read(file: Path) -> tuple[str, str]:
    """Return the text of a file, and its name in messages."""
    if str(file) == "-":
        return sys.stdin.read(), "stdin"
    try:
        return file.read_text(encoding="utf-8-sig"), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
