"""Job given to a command: its file, with changes from flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import Parameter

from dljob.errors import PlacementError, UsageError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from dljob.api.kubernetes.submit import GivenJob
    from dljob.plan.model import JobPlan
    from dljob.spec.model import DLJobManifest
    from dljob.spec.rules.findings import Finding


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Flags that change a job's file for one run."""

    name: Annotated[str | None, Parameter(help="name of the job, instead of the file's.")] = None
    set: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            show_default=False,
            help="override a value of the spec, such as roles.trainer.replicas=4; list items by name or number, the "
            "value in YAML; may be repeated.",
        ),
    ] = ()
    env: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", show_default=False, help="NAME=VALUE for the environment of every role; may be repeated."
        ),
    ] = ()
    trace_calls: Annotated[
        bool,
        Parameter(negative="", help="record the calls between roles, a sample of them, for dljob trace."),
    ] = False


UNCHANGED = Overrides()


def manifest_of(
    file: Path,
    *,
    changes: Overrides = UNCHANGED,
    backend: str | None = None,
    rules: Callable[[DLJobManifest], Sequence[Finding]] | None = None,
) -> DLJobManifest:
    """Load the one job of a file and apply the flags; `rules` are those of the place where it is to run.

    Raises:
        UsageError: the file cannot be read, or a flag names something that does not exist.
        SpecError: the spec is wrong; the error has every problem.
    """
    from dljob.spec.loading.load import load_file, parse
    from dljob.spec.variables import TRACE_CALLS

    if changes == UNCHANGED and backend is None:
        return load_file(file, rules=rules)
    # Not by the place's rules yet: a flag may mend what they would find.
    manifest = load_file(file)
    # Flags change the valid document, which is validated once more: an override can break any rule.
    data = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = data["spec"]
    if changes.name is not None:
        data["metadata"]["name"] = changes.name
    if backend is not None:
        spec["backend"] = {**(spec.get("backend") or {}), "name": backend}
    for text in changes.set:
        _assign(spec, text)
    for text in (*changes.env, *[f"{TRACE_CALLS}=1"] * changes.trace_calls):
        name, value = _split(text, "--env", "NAME=VALUE")
        # The last value of a name counts, also over the file's.
        rest = [variable for variable in spec.get("env", []) if variable["name"] != name]
        spec["env"] = [*rest, {"name": name, "value": value}]
    return parse(data, rules=rules)


def cluster_job(
    file: Path,
    *,
    upload: bool | None,
    changes: Overrides = UNCHANGED,
    backend: str | None = None,
    replace: bool = False,
    resume: str | None = None,
) -> GivenJob:
    """Read the job of a file for a cluster, and find its problems before any cluster is asked.

    Raises:
        SpecError, PlacementError: the job is wrong.
    """
    from dljob.api.kubernetes.refusals import JobFile
    from dljob.api.kubernetes.submit import GivenJob
    from dljob.plan.plan import plan

    manifest = manifest_of(file, changes=changes, backend=backend)
    # Only for its errors: the operator plans for itself.
    plan(manifest)
    # -sig: editors on Windows begin a file with a byte-order mark.
    source = JobFile.read(str(file), file.read_text(encoding="utf-8-sig"))
    return GivenJob(manifest, folder_of(file, manifest), upload, source, replace, resume)


def with_resources(manifest: DLJobManifest) -> DLJobManifest:
    """Return the job with the resources that `resources.auto` leaves open, and tell each choice on stderr.

    They are chosen from the records of the newest ended jobs of its name on this machine.
    """
    from dljob.spec import chosen_resources

    if not chosen_resources.undecided(manifest.spec):
        return manifest
    from dljob.api import registry
    from dljob.cli import extensions, output

    ended = [record for record in registry.records() if record.name == manifest.metadata.name and record.over]
    newest = sorted(ended, key=lambda choice: choice.started)[-chosen_resources.EARLIER_JOBS :]
    measure_jobs = extensions.load(extensions.CHOOSERS, "auto", "resources.auto")
    chosen = chosen_resources.choose(manifest.spec, *measure_jobs(manifest, [record.folder for record in newest]))
    for choice in chosen:
        output.say(f"roles.{choice.role}.{chosen_resources.describe_choice(choice)}")
    return chosen_resources.with_chosen(manifest, chosen)


def _split(text: str, flag: str, form: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{flag} {text}", hint=f"write {flag} {form}")
    return name, value


def _assign(spec: dict[str, JsonValue], text: str) -> None:
    """Set one value of `--set` in a spec."""
    from dljob.spec.text.tree import read

    path, value = _split(text, "--set", "roles.trainer.replicas=4")
    # With and without `spec.`: messages about a field spell its whole path.
    *parents, last = path.removeprefix("spec.").split(".")
    place: JsonValue = spec
    for part in parents:
        place = _inside(place, part, path)
    # YAML, as in the file: 4 is a number, "4" a text, [a, b] a list.
    (document,) = read(f"value: {value}") or (None,)
    if document is None or document.faults or not isinstance(document.data, dict):
        raise UsageError(f"--set {text}: {value!r} is no YAML value", hint="a text with signs of YAML stands in quotes")
    if isinstance(place, list):
        place[_index(place, last, path)] = document.data["value"]
    elif isinstance(place, dict):
        place[last] = document.data["value"]
    else:
        _unfit(path, last)


def _inside(place: JsonValue, part: str, path: str) -> JsonValue:
    if isinstance(place, list):
        return place[_index(place, part, path)]
    # An object that the file leaves out is made, so that one of its fields can be set.
    return place.setdefault(part, {}) if isinstance(place, dict) else _unfit(path, part)


def _index(items: list[JsonValue], part: str, path: str) -> int:
    """Return the index of a list item by its name or number."""
    names = [str(item.get("name", "")) if isinstance(item, dict) else "" for item in items]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    return _unfit(path, part, [name for name in names if name])


def _unfit(path: str, part: str, names: Sequence[str] = ()) -> NoReturn:
    raise UsageError(f"--set {path}: there is no {part}", hint=f"there is {', '.join(names)}" if names else "")


def folder_of(file: Path, manifest: DLJobManifest) -> Path:
    """Return the code folder of a job: `code.workingDir`, else the folder of its file."""
    return file.resolve().parent / (manifest.spec.code.working_dir or "")


def unfit_here(file: Path, manifest: DLJobManifest) -> list[Finding]:
    """Return what this machine lacks of a job's file: scripts, and Pythons."""
    return [*unfit_code(file, manifest), *unfit_pythons(manifest)]


def sizes_here(job: JobPlan, pretend: Mapping[str, int] | None = None) -> list[str]:
    """Return a line for each role that could not grow to its largest size by `dljob run` on this machine.

    Empty also for a job that this machine cannot run at all: it is for a cluster.
    """
    if not any(role.resizes for role in job.roles.values()) or find_spec("ray") is None:
        return []
    from dljob.runtime.backend.machine import devices_here, lay_out, machines_here, size_notes

    declared, devices = pretend or {}, devices_here()
    machines = machines_here(job, declared, devices)
    try:
        lay_out(machines, declared, devices)
    except PlacementError:
        return []
    return size_notes(job, machines)


def unfit_pythons(manifest: DLJobManifest) -> list[Finding]:
    """Return a finding for each role whose interpreter this machine lacks, or which cannot run the role's ranks."""
    from dljob.linux.interpreter import InterpreterError, find, misfit, own_interpreter
    from dljob.spec.rules.findings import Finding
    from dljob.spec.rules.interpreters import in_ray

    findings = list[Finding]()
    for index, role in enumerate(manifest.spec.roles):
        if not role.python:
            continue
        try:
            problem = misfit(find(role.python), own_interpreter(), in_ray=in_ray(role))
        except InterpreterError as error:
            problem = str(error)
        if problem:
            words = f"role {role.name} cannot run with {role.python} on this machine: {problem}"
            findings.append(Finding(("spec", "roles", index, "python"), words))
    return findings


def unfit_code(file: Path, manifest: DLJobManifest) -> list[Finding]:
    """Return a finding for each role that the code in the job's folder does not fit."""
    from dljob.cli.meshes import unfit_meshes

    return [*missing_code(file, manifest), *unfit_meshes(folder_of(file, manifest), manifest)]


def missing_code(file: Path, manifest: DLJobManifest) -> list[Finding]:
    """Return a finding for each role whose script is not in the job's folder."""
    from dljob.spec.rules.findings import Finding

    folder, findings = folder_of(file, manifest), list[Finding]()
    for index, role in enumerate(manifest.spec.roles):
        script = role.entrypoint.module
        # Only a file has a known place; a dotted module may be installed anywhere.
        if script and script.endswith(".py") and not (folder / script).is_file():
            words = f"there is no file {script} in {folder}, the job's folder"
            hint = "mend the path, or name the folder in spec.code.workingDir"
            findings.append(Finding(("spec", "roles", index, "entrypoint", "module"), words, hint))
    return findings
