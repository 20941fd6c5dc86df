"""What `make dist` builds of Python, installed into an empty environment of the locked packages without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from patience import patience

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "release"))

import build  # noqa: E402 - the folder above has no package

UV = ROOT / ".uv" / "bin" / "uv"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheels."""
    folder = tmp_path_factory.mktemp("dist")
    build.packages(folder)
    return folder


def ran(command: list[str | Path], folder: Path, **env: str | Path) -> str:
    """What a command prints; none of dljob's own sources, of this environment or of a Ray are in its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DLJOB_", "PYTHON"))}
    given: Mapping[str, str] = {**kept, "NO_COLOR": "1", "DLJOB_HOME": f"{folder}/home"}
    given = {**given, **{name: str(value) for name, value in env.items()}}
    done = subprocess.run(
        command, cwd=folder, env=given, capture_output=True, text=True, timeout=patience(100), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(kind: str, built: Path, folder: Path) -> Path:
    """The programs of an environment with the locked packages of the extra `runtime`, and dljob from a file."""
    if not UV.exists():
        pytest.skip("the environment is made by the uv of `make setup`")
    locked = ["--locked", "--offline", "--no-install-project", "--no-default-groups", "--extra=runtime"]
    backend = ["--group=dist"] if kind == "tar.gz" else []  # an sdist is built where it is installed
    place = folder / "environment"
    sync = [UV, "sync", "--quiet", "--project", ROOT, f"--python={sys.executable}", *locked, *backend]
    ran(sync, folder, UV_PROJECT_ENVIRONMENT=place)
    (file,) = built.glob(f"dljob-*.{kind}")
    install = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--no-cache"]
    ran([*install, f"--python={place}/bin/python", file], folder)
    return place / "bin"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_the_first_job_runs_from_what_a_release_holds(kind: str, built: Path, tmp_path: Path) -> None:
    programs = installed(kind, built, tmp_path)
    job = tmp_path / "first"
    job.mkdir()
    ran([programs / "dljob", "init"], job)
    script = job / "train.py"
    script.write_text(script.read_text().replace("STEPS = 20", "STEPS = 2"))
    last = ran([programs / "dljob", "run", "dljob.yaml"], job).splitlines()[-1]
    assert last.startswith('{"steps": 2, "loss": 0.64')
    where = "import dljob, importlib.util as u; print(dljob.__file__, u.find_spec('torch'))"
    file, torch = ran([programs / "python", "-c", where], job).split()
    assert Path(file).is_relative_to(programs.parent)
    assert torch == "None"
