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


def own_interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    return Interpreter(sys.executable, sys.version_info[:3], _installed("ray"), _installed("dljob"))


def _installed(name: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def misfit(interpreter: Interpreter, cluster: Interpreter, *, in_ray: bool) -> str:
    """Return why ranks cannot run in an interpreter; empty if they can. `in_ray`: they live in Ray's workers."""
    return _unlike_dljob(interpreter.dljob, cluster.dljob) or _unlike_python(interpreter, cluster, in_ray=in_ray)


def _unlike_dljob(installed_version: str, job_version: str) -> str:
    # The job's dljob would hide the installed one, for which the environment's code was perhaps written.
    if not (installed_version and job_version) or installed_version.split(".")[:2] == job_version.split(".")[:2]:
        return ""
    return (
        f"it has dljob {installed_version}, and the job runs with dljob {job_version}, which ranks import: install "
        "that there, or none"
    )


def _unlike_python(interpreter: Interpreter, cluster: Interpreter, *, in_ray: bool) -> str:
    if not in_ray:
        if OLDEST <= interpreter.version[:2] <= NEWEST:
            return ""
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        return f"it is {interpreter.words}, and ranks need Python {oldest} to {newest}"
    if (interpreter.version[:2], interpreter.ray) == (cluster.version[:2], cluster.ray):
        return ""
    return (
        f"it is {interpreter.words}, and the cluster has {cluster.words}: ranks that use Ray need the same minor "
        "version of Python and the same Ray"
    )


def find(name_or_path: str) -> Interpreter:
    """Find an interpreter in this node, by its path or on PATH, and ask for its versions.

    Raises:
        InterpreterError: There is none, or it does not answer.
    """
    path_text = name_or_path if name_or_path.startswith("/") else shutil.which(name_or_path)
    if path_text is None:
        raise InterpreterError(f"it is not on PATH{_hint(name_or_path, _on_path())}")
    path = Path(path_text)
    if not path.exists():
        near = sorted(str(neighbour) for neighbour in path.parent.glob("*python*")) if path.parent.is_dir() else []
        raise InterpreterError(f"there is no such file{_hint(name_or_path, near)}")
    env = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    try:
        answer = subprocess.run(
            [path_text, "-c", _ASK], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InterpreterError(f"it does not run: {error}") from error
    try:
        (first, second, third), ray, dljob = json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError, TypeError) as error:
        words = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {answer.returncode}"
        raise InterpreterError(f"it is no Python: {words:.200}") from error
    return Interpreter(path_text, (first, second, third), ray, dljob)


def _on_path() -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return sorted({program.name for folder in folders if folder for program in Path(folder).glob("python*")})


def _hint(name: str, near: list[str]) -> str:
    close = difflib.get_close_matches(name, near, n=1, cutoff=0.7)
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
    problem = ""
    try:
        interpreter = find(role.python)
        problem = misfit(interpreter, own_interpreter(), in_ray=uses_ray(role))
    except InterpreterError as error:
        problem = str(error)
    else:
        if not problem:
            return interpreter
    raise InterpreterError(
        f"role {role.name} cannot run with python: {role.python} on node {platform.node()}: {problem}; "
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


def launcher(name_or_path: str, job_dir: str) -> str:
    """Return the command by which Ray's shell starts a worker in a role's interpreter.

    The node's own Python decides there. One that does not fit is replaced by it, so that the worker starts at all, and
    says why its rank does not.
    """
    own_command = shlex.join([sys.executable, "-P", "-m", __name__, name_or_path, job_dir])
    return f"$({own_command} || command -v python3)"


def check_worker(role: RolePlan) -> None:
    """Check that this worker runs in its role's interpreter.

    Raises:
        InterpreterError: It does not.
    """
    if not role.python or sys.executable == shutil.which(role.python):
        return
    choose(role)
    raise InterpreterError(f"role {role.name} has python: {role.python}, and Ray started {sys.executable} instead")


def main(name_or_path: str, job_dir: str) -> None:
    """Print the words that start a worker: its interpreter, with a path to this dljob, or this one's if it is unfit."""
    words = [sys.executable]
    with suppress(InterpreterError):  # the worker finds the same, and reports it
        interpreter = find(name_or_path)
        if not misfit(interpreter, own_interpreter(), in_ray=True):
            env = environment(interpreter, library(job_dir), os.environ)
            words = ["env", *(f"{name}={value}" for name, value in env.items()), interpreter.path]
    sys.stdout.write(" ".join(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
