"""The environment of the tests on a GPU: the Python and torch that are there, and wheels of what these lack.

    python3 tests/ray/gpu/gpu_environment.py    # make it, and say where it is, or why there is none

No package index is asked: what is missing comes from the folder DLJOB_WHEELS. Only the standard library is imported
here, since any Python runs it. The environment is made once for each checkout and list of packages, in the tests'
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
WHEELS = "DLJOB_WHEELS"
OLDEST_TORCH = (2, 7)
PYTHONS = ((3, 11), (3, 13))
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "pytest-asyncio", "hypothesis", "psutil")
"""Of the group `test` in pyproject.toml, what these tests, their conftest files and pytest's settings need."""
ANY = ("numpy",)
"""What is needed in any version."""
IMPORTS = (
    *("dljob.cli", "dljob.runtime.controller.prime_actor", "ray", "cyclopts", "immutables", "pathspec", "platformdirs"),
    *("pydantic", "rich", "ruamel.yaml", "typing_extensions", "numpy"),
    *("psutil", "hypothesis", "pytest", "pytest_asyncio", "pytest_timeout", "xdist"),
)
"""Modules without which no test runs, whatever else the packages require."""
INCOMPLETE = "incomplete"
"""A file in an environment that lacks something that no test needs: it is used as it is."""
ASKED = "name,driver_version"
_TORCH = """
import json, torch
print(json.dumps([torch.__version__, torch.version.cuda or "", torch.cuda.device_count()]))
"""


class NotToBeHadError(Exception):
    """The tests cannot run here; `skips`: as there is no GPU, so that this is no failure."""

    def __init__(self, why: str, *, skips: bool) -> None:
        super().__init__(why)
        self.skips = skips


def gpu() -> tuple[str, str]:
    """Return the name of the first GPU, and its driver.

    Raises:
        NotToBeHadError: There is none.
    """
    if shutil.which("nvidia-smi") is None:
        raise NotToBeHadError("no NVIDIA GPU: there is no nvidia-smi", skips=True)
    asked = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or "," not in lines[0]:
        said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        raise NotToBeHadError(f"no NVIDIA GPU: nvidia-smi says {said.splitlines()[0]}", skips=True)
    name, _, driver = lines[0].rpartition(",")
    return name.strip(), driver.strip()


def torch_of(python: str) -> str:
    """Return the version of a Python's torch, if that can compute on this machine's GPU.

    Raises:
        NotToBeHadError: It cannot, or there is none.
    """
    done = subprocess.run([python, "-c", _TORCH], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise NotToBeHadError(f"{python} has no torch to use: {said[0]}", skips=True)
    version, cuda, count = json.loads(done.stdout.splitlines()[-1])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise NotToBeHadError(f"{python} has torch {version}; the oldest one supported is {oldest}", skips=True)
    if not cuda or not count:
        why = "sees no GPU" if cuda else "is built without CUDA"
        raise NotToBeHadError(f"torch {version} of {python} {why}", skips=True)
    return version


def wanted() -> list[str]:
    """Return what dljob and these tests require, but torch, as lines for pip."""
    import tomllib

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, group = data["project"], data["dependency-groups"]["test"]
    tests = [line for line in group if isinstance(line, str) and line.partition(">")[0] in TESTS]
    return [*project["dependencies"], *project["optional-dependencies"]["runtime"], *tests, *ANY]


def lacking(lines: Sequence[str]) -> list[str]:
    """Return the requirements, and theirs in turn, that this Python does not have in a version that fits."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # every pip has one of its own
        from pip._vendor.packaging.requirements import Requirement  # type: ignore[no-redef]

    missing, seen, todo = dict[str, str](), set[tuple[str, str]](), [Requirement(line) for line in lines]
    while todo:
        one = todo.pop(0)
        try:
            there: metadata.Distribution | None = metadata.distribution(one.name)
        except metadata.PackageNotFoundError:
            there = None
        if there is None or not one.specifier.contains(there.version, prereleases=True):
            missing.setdefault(one.name, f"{one.name}{_extras(one)}{one.specifier}")
        elif (key := (one.name, _extras(one))) not in seen:
            seen.add(key)
            theirs = map(Requirement, there.requires or ())
            todo += [each for each in theirs if _applies(each, ("", *one.extras))]
    return list(missing.values())


def _extras(one: Any) -> str:
    return f"[{','.join(sorted(one.extras))}]" if one.extras else ""


def _applies(one: Any, extras: Sequence[str]) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": each}) for each in extras)


def download(lines: Sequence[str], folder: str) -> str:
    """Return the command that fills a folder with wheels, for a machine with a package index."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = ["pip", "download", "--dest", folder, "--python-version", python, "--only-binary=:all:", *lines]
    return shlex.join(words)


def _lacks(python: Path | str, lines: Sequence[str]) -> list[str]:
    """Return what another Python lacks of these."""
    done = subprocess.run([python, __file__, "lacking", *lines], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def make(python: str = sys.executable) -> Path:
    """Return the Python of the tests, with dljob of this checkout and all that it requires.

    Raises:
        NotToBeHadError: There is no GPU, no torch for it, or packages are missing.
    """
    low, high = PYTHONS
    if not low <= sys.version_info[:2] <= high:
        here, bounds = f"{sys.version_info.major}.{sys.version_info.minor}", "3.11 to 3.13"
        raise NotToBeHadError(f"{python} is Python {here}; dljob runs on {bounds}", skips=True)
    gpu()
    torch_of(python)
    return completed(python, wanted())


def completed(python: str, lines: Sequence[str]) -> Path:
    """Return a Python with what is on these lines and this checkout: this one, or an environment on top of it."""
    missing = _lacks(python, lines)
    if not missing and not _lacks(python, ["dljob"]):
        return Path(python)
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    key = hashlib.sha256("\n".join([python, sys.version, str(ROOT), *lines]).encode()).hexdigest()[:12]
    home = cache / f"gpu-{key}"
    own = home / "bin" / "python"
    if own.exists() and ((home / INCOMPLETE).exists() or not _lacks(own, lines)):
        return own
    wheels = os.environ.get(WHEELS, "")
    if missing and not Path(wheels or "/nowhere").is_dir():
        where = f"{WHEELS} is {wheels!r}, which is no folder" if wheels else f"{WHEELS} names no folder of wheels"
        todo = f"with a package index: {download(missing, 'wheels')}; then {WHEELS}=wheels"
        raise NotToBeHadError(f"{python} lacks {', '.join(missing)}, and {where}. {todo}", skips=False)
    shutil.rmtree(home, ignore_errors=True)  # of a run that was ended, or whose wheels were not all
    subprocess.run([python, "-m", "venv", "--without-pip", home], check=True)
    _link(own, python)
    if missing and not _install(python, own, missing, wheels):
        (home / INCOMPLETE).touch()
    _find_py_spy(own, python)
    return own


def _link(own: Path, python: str) -> None:
    """Show an environment the packages of the Python that it stands on, torch among them, and this checkout."""
    where = "import json, site; print(json.dumps([*site.getsitepackages(), site.getusersitepackages()]))"
    told = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([own, "-c", place], capture_output=True, text=True, check=True).stdout.strip())
    # addsitedir, and not only a path: packages there may have .pth files of their own.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in json.loads(told) if Path(folder).is_dir()]
    folders = [str(ROOT / "workers"), str(ROOT / "operator")]
    (packages / "dljob-checkout.pth").write_text("\n".join([*folders, *lines]) + "\n")
    _register(packages)


def _register(packages: Path) -> None:
    """Write the metadata of an installed dljob with its tools: entry points of backends and commands are read there."""
    import tomllib

    for place in (".", "workers/tools"):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        name, version = project["name"], project["version"]
        folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        groups = {"console_scripts": project.get("scripts", {}), **project["entry-points"]}
        text = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in groups.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(text))


def _pip(python: str, own: Path, wheels: str, words: Sequence[str]) -> str:
    """Install from the folder of wheels alone; return why that failed, or an empty text."""
    pip = [python, "-m", "pip", "--python", own, "--disable-pip-version-check", "install", "--quiet"]
    all_words = [*pip, "--no-index", "--find-links", wheels, "--only-binary=:all:", *words]
    done = subprocess.run(all_words, capture_output=True, text=True, timeout=900, check=False)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


def _install(python: str, own: Path, missing: Sequence[str], wheels: str) -> bool:
    """Install what is missing, else all wheels without regard to what they require; return whether nothing lacks.

    One package that no test needs is not to cost the time on a GPU.

    Raises:
        NotToBeHadError: The folder lacks something that the tests import, or there is no pip.
    """
    if not (why := _pip(python, own, wheels, missing)):
        return True
    names = sorted({wheel.name.partition("-")[0] for wheel in Path(wheels).glob("*.whl")})
    failed = _pip(python, own, wheels, ["--no-deps", "--no-compile", "--upgrade", *names])
    tried = subprocess.run([own, "-c", f"import {', '.join(IMPORTS)}"], capture_output=True, text=True, check=False)
    left = _lacks(own, missing)
    if failed or tried.returncode:
        said = failed or (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        todo = f"with a package index: {download(left or missing, wheels)}"
        raise NotToBeHadError(
            f"the wheels in {wheels} do not have all that is missing: {why}; each for itself: {said}. {todo}",
            skips=False,
        )
    print(f"the tests run without {', '.join(left)}, which {wheels} does not have: {why}", file=sys.stderr)
    return False


def _find_py_spy(own: Path, python: str) -> None:
    """Show an environment the py-spy of the Python that it stands on; say where there is none."""
    beside = Path(python).with_name("py-spy")
    if not own.with_name("py-spy").exists() and beside.exists():
        own.with_name("py-spy").symlink_to(beside)
    elif not own.with_name("py-spy").exists() and shutil.which("py-spy") is None:
        print("no py-spy: the test of a hang, which reads stacks, will fail", file=sys.stderr)


def facts(python: str | Path) -> dict[str, str]:
    """Return what the tests ran on: GPU, driver, torch."""
    name, driver = gpu()
    return {"gpu": name, "driver": driver, "torch": torch_of(str(python))}


if __name__ == "__main__":
    if sys.argv[1:2] == ["lacking"]:
        print(json.dumps(lacking(sys.argv[2:])))
    else:
        try:
            print(make())
        except NotToBeHadError as error:
            sys.exit(str(error))
