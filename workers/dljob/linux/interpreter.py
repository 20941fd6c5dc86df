"""The interpreter of a role's ranks, `roles[].python`: found and checked in the node before a rank starts.

A rank of a module or command needs nothing of dljob in it: a folder whose only entry leads to this process's dljob is
first on its import path. A rank of a class lives in a Ray worker, so there Ray must be that of the cluster.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dljob.master.state.views import Outcome, Reason
from dljob.plan.role import HostKind, RolePlan
from dljob.spec.versions import NEWEST, OLDEST

LOOK_S = 30.0
"""Seconds for an interpreter to say what it is."""
# For any Python, so that an old one says its version and not that it cannot read this, or that it does not know -P,
# which would keep files of the current folder from standing in for modules.
_ASK = """import sys
sys.path[:] = filter(None, sys.path)
import json
ray = dljob = ""
try:
    import site
    from importlib.metadata import distributions, version
    # Its own, not that of an import path which this process hands on.
    dljob = next((each.version for each in distributions(name="dljob", path=site.getsitepackages())), "")
    ray = version("ray")
except Exception:
    pass
print(json.dumps([list(sys.version_info[:3]), ray, dljob]))
"""
MISLEADING = ("PYTHONHOME", "VIRTUAL_ENV", "PYTHONEXECUTABLE")
"""Variables that are about the interpreter of this process, and wrong for another one."""


class InterpreterError(Exception):
    """An interpreter that ranks cannot use; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter, and the versions of Ray and dljob that are installed in it: empty for none."""

    path: str
    version: tuple[int, int, int]
    ray: str
    dljob: str = ""

    @property
    def words(self) -> str:
        """Its versions, for an error message."""
        return f"Python {'.'.join(map(str, self.version))} {f'with Ray {self.ray}' if self.ray else 'without Ray'}"


def here() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter(sys.executable, sys.version_info[:3], _installed("ray"), _installed("dljob"))


def _installed(name: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def misfit(found: Interpreter, cluster: Interpreter, *, in_ray: bool) -> str:
    """Return why ranks cannot run in an interpreter; empty if they can. `in_ray`: they live in Ray's workers."""
    return _unlike_dljob(found.dljob, cluster.dljob) or _unlike_python(found, cluster, in_ray=in_ray)


def _unlike_dljob(found: str, job: str) -> str:
    # The job's dljob would hide the installed one, for which the environment's code was perhaps written.
    if not (found and job) or found.split(".")[:2] == job.split(".")[:2]:
        return ""
    return f"it has dljob {found}, and the job runs with dljob {job}, which ranks import: install that there, or none"


def _unlike_python(found: Interpreter, cluster: Interpreter, *, in_ray: bool) -> str:
    if not in_ray:
        if OLDEST <= found.version[:2] <= NEWEST:
            return ""
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        return f"it is {found.words}, and ranks need Python {oldest} to {newest}"
    if (found.version[:2], found.ray) == (cluster.version[:2], cluster.ray):
        return ""
    return (
        f"it is {found.words}, and the cluster has {cluster.words}: ranks that use Ray need the same minor version of "
        "Python and the same Ray"
    )


def find(wanted: str) -> Interpreter:
    """Find an interpreter in this node, by its path or on PATH, and ask for its versions.

    Raises:
        InterpreterError: There is none, or it does not answer.
    """
    found = wanted if wanted.startswith("/") else shutil.which(wanted)
    if found is None:
        raise InterpreterError(f"it is not on PATH{_hint(wanted, _on_path())}")
    path = Path(found)
    if not path.exists():
        near = sorted(str(each) for each in path.parent.glob("*python*")) if path.parent.is_dir() else []
        raise InterpreterError(f"there is no such file{_hint(wanted, near)}")
    env = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    try:
        said = subprocess.run(
            [found, "-c", _ASK], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InterpreterError(f"it does not run: {error}") from error
    try:
        (first, second, third), ray, dljob = json.loads(said.stdout.splitlines()[-1])
    except (ValueError, IndexError, TypeError) as error:
        words = said.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {said.returncode}"
        raise InterpreterError(f"it is no Python: {words:.200}") from error
    return Interpreter(found, (first, second, third), ray, dljob)


def _on_path() -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return sorted({found.name for folder in folders if folder for found in Path(folder).glob("python*")})


def _hint(wanted: str, near: list[str]) -> str:
    close = difflib.get_close_matches(wanted, near, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def uses_ray(role: RolePlan) -> bool:
    """Whether a role's ranks are processes of Ray: workers, or drivers."""
    return role.host is HostKind.THREAD or role.quota is not None


def choose(role: RolePlan) -> Interpreter | None:
    """Return the interpreter of a role's ranks; None: that of this process.

    Raises:
        InterpreterError: It cannot run them.
    """
    if not role.python:
        return None
    said = ""
    try:
        found = find(role.python)
        said = misfit(found, here(), in_ray=uses_ray(role))
    except InterpreterError as error:
        said = str(error)
    else:
        if not said:
            return found
    raise InterpreterError(
        f"role {role.name} cannot run with python: {role.python} on node {platform.node()}: {said}; "
        "correct roles[].python, or install it there"
    )


def refused(error: InterpreterError) -> Outcome:
    """Return the end of a rank that its interpreter cannot run. It is fatal: a restart finds the same interpreter."""
    return Outcome(
        ok=False, reason=Reason.USER_ERROR, code=1, error_type="InterpreterError", message=str(error), fatal=True
    )


def library(job_dir: str) -> str:
    """Return a folder that holds this process's dljob and nothing else, for the import path of another interpreter."""
    package = os.fspath(Path(__file__).resolve().parents[1])
    # The digest: nodes that share the job's folder may have dljob at different places.
    folder = Path(job_dir, "python", hashlib.sha256(package.encode()).hexdigest()[:8])
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / "dljob").symlink_to(package, target_is_directory=True)
    return os.fspath(folder)


def environment(python: Interpreter, library: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which an interpreter finds its own programs, and this process's dljob."""
    folder = Path(python.path).parent
    paths = [os.fspath(folder), inherited.get("PATH", os.defpath)]
    imports = [library, inherited.get("PYTHONPATH", "")]
    env = {"PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(path for path in imports if path)}
    if (folder.parent / "pyvenv.cfg").is_file():
        env["VIRTUAL_ENV"] = os.fspath(folder.parent)
    return env


# -- workers of Ray


def launcher(wanted: str, job_dir: str) -> str:
    """Return the command by which Ray's shell starts a worker in a role's interpreter.

    The node's own Python decides there. One that does not fit is replaced by it, so that the worker starts at all, and
    says why its rank does not.
    """
    own = shlex.join([sys.executable, "-P", "-m", __name__, wanted, job_dir])
    return f"$({own} || command -v python3)"


def check_worker(role: RolePlan) -> None:
    """Check that this worker runs in its role's interpreter.

    Raises:
        InterpreterError: It does not.
    """
    if not role.python or sys.executable == shutil.which(role.python):
        return
    choose(role)
    raise InterpreterError(f"role {role.name} has python: {role.python}, and Ray started {sys.executable} instead")


def main(wanted: str, job_dir: str) -> None:
    """Print the words that start a worker: its interpreter, with a path to this dljob, or this one's if it is unfit."""
    words = [sys.executable]
    with suppress(InterpreterError):  # the worker finds the same, and reports it
        found = find(wanted)
        if not misfit(found, here(), in_ray=True):
            env = environment(found, library(job_dir), os.environ)
            words = ["env", *(f"{name}={value}" for name, value in env.items()), found.path]
    sys.stdout.write(" ".join(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
