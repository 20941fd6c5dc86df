"""`dljob validate`: every problem of a spec, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.job_file import sizes_here, unfit_code
from dljob.errors import ExitCode, Problem, SpecError, UsageError
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest
    from dljob.spec.rules.findings import Finding

Level = Literal["privileged", "baseline", "restricted"]
Form = Literal["text", "json", "yaml"]


def validate(
    file: Path,
    /,
    *more: Path,
    pod_security: Level = "baseline",
    form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text",
) -> ExitCode:
    """Check job files: unknown fields, invalid values, roles or a plan that do not fit together.

    Pods that the operator would refuse are problems too. All problems are shown together, as file:line:column. Exits
    with 2 when there are any.

    Args:
        file: YAML or JSON file.
        more: further files.
        pod_security: level that pods may use, as in the operator's value jobs.podSecurity.
        form: text, json or yaml.
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    notes: list[str] = []
    jobs = 0
    for path in (file, *more):
        file_problems, manifests = _check(path, pod_security)
        problems += file_problems
        jobs += len(manifests)
        warnings += [line for manifest in manifests for line in _warned(path, manifest)]
        notes += [f"{path}: {line}" for manifest in manifests for line in _sizes_here(manifest)]
    # Of this machine and not of the files: no part of the data.
    for line in notes:
        output.say(line)
    for line in warnings:
        output.say(f"warning: {line}")
    if form != "text":
        answer: dict[str, Any] = {"valid": not problems, "jobs": jobs, "problems": [asdict(p) for p in problems]}
        answer |= {"warnings": warnings} if warnings else {}
        output.structured(answer, form)
    elif problems:
        output.data("\n".join(str(p) for p in problems))
        output.say(counted(len(problems), "problem"))
    else:
        output.data(f"{counted(jobs, 'job')}: valid")
    return ExitCode.USAGE if problems else ExitCode.OK


def _sizes_here(manifest: DLJobManifest) -> list[str]:
    """Return the roles that could not grow to their largest size on this machine, in lines."""
    from dljob.plan.plan import plan

    return sizes_here(plan(manifest)) if any(role.max_replicas for role in manifest.spec.roles) else []


def _warned(path: Path, manifest: DLJobManifest) -> list[str]:
    """Return the settings of a valid job that are hardly meant so."""
    from dljob.spec.rules.launchers import launcher_warnings
    from dljob.spec.rules.outside import checkpoint_warnings
    from dljob.spec.rules.serving import port_warnings
    from dljob.spec.rules.tensorflow import tensorflow_warnings
    from dljob.spec.rules.weights import weight_warnings
    from dljob.spec.text.words import path_of

    spec = manifest.spec
    rules = (weight_warnings, checkpoint_warnings, launcher_warnings, tensorflow_warnings, port_warnings)
    findings = (finding for rule in rules for finding in rule(spec))
    return [f"{path}: {path_of(warning.loc)}: {warning.message} ({warning.hint})" for warning in findings]


def _check(path: Path, level: Level) -> tuple[list[Problem], Sequence[DLJobManifest]]:
    """Return the problems of one file, and its jobs."""
    from dljob.raycluster.acceptance import refusals
    from dljob.raycluster.pod_security import PodPolicy
    from dljob.spec.admission import lacking
    from dljob.spec.loading.load import load_file_all

    misfits: list[Problem] = []

    def rules(manifest: DLJobManifest) -> Sequence[Finding]:
        findings = refusals(manifest, PodPolicy(level))
        # A Ray has all capabilities; of another backend only its adapter knows them.
        backend = manifest.spec.backend
        if backend is not None and backend.name == "yr":
            from dljob.runtime.backend.yr_local_mode import LOCAL

            lacks = lacking(manifest, backend.name, LOCAL)
            misfits.extend(replace(problem, file=str(path)) for problem in lacks)
        # With an image or a ConfigMap the code is not in this folder.
        in_cluster = manifest.spec.image or manifest.spec.code.config_map
        return (*findings, *(() if in_cluster else unfit_code(path, manifest)))

    try:
        manifests = load_file_all(path, rules=rules)
    except SpecError as error:
        return [*error.problems, *misfits], ()
    except UsageError as error:
        message = error.message.replace(f"cannot read {path}", "cannot be read")  # `Problem` shows the file itself
        return [Problem("", message, file=str(path), hint=error.hint)], ()
    return misfits, manifests
