"""The environment of published frameworks: locked with hashes, made once for each lock, in the tests' cache.

Versions that dljob's own lock has are taken from it, so that uv links the same files into this environment: torch is on
the disk once. dljob itself is not in it: each checkout adds its sources by PYTHONPATH.

    .venv/bin/python tests/frameworks/environment.py           # make it, and say where it is
    .venv/bin/python tests/frameworks/environment.py --lock    # write environment.lock anew
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOCK = HERE / "environment.lock"
UV = ROOT / ".uv" / "bin" / "uv"
MINUTES = 15
"""As long as making it may take on a machine that has none of its packages."""


class NotToBeHadError(Exception):
    """The environment is not in the cache, and cannot be made here."""


def _uv(*words: str | Path) -> str:
    program = str(UV) if UV.exists() else "uv"
    done = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, timeout=60 * MINUTES, check=True)
    return done.stdout


def make() -> Path:
    """Return its python, once it is there."""
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    home = cache / f"frameworks-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            new = Path(work, "new")
            try:
                _uv("venv", "--quiet", f"--python={sys.executable}", "--relocatable", new)
                _uv("pip", "sync", "--quiet", "--require-hashes", f"--python={new}/bin/python", LOCK)
            except (OSError, subprocess.SubprocessError) as error:
                said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
                raise NotToBeHadError(
                    f"the environment of the frameworks cannot be made here, and {home} is not there: {said}"
                ) from error
            with suppress(OSError):  # Another run created it first.
                new.rename(home)
    return home / "bin" / "python"


def lock() -> None:
    """Write environment.lock: environment.in and dljob's own requirements, in the versions of uv.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = [*project["dependencies"], *(more for extra in ("runtime", "torch", "http") for more in
            project["optional-dependencies"][extra])]  # fmt: skip
    with tempfile.TemporaryDirectory() as work:
        known, wanted = Path(work, "known.txt"), Path(work, "ours.in")
        export = ("export", "--frozen", "--all-extras", "--no-default-groups", "--no-emit-project", "--no-hashes")
        known.write_text(_uv(*export))
        wanted.write_text("\n".join(ours))
        compile_ = ("pip", "compile", "--quiet", f"--python={sys.executable}", "--generate-hashes", "--no-annotate")
        _uv(*compile_, "--no-header", "-c", known, HERE / "environment.in", wanted, "-o", LOCK)


if __name__ == "__main__":
    if sys.argv[1:] == ["--lock"]:
        lock()
    try:
        print(make())
    except NotToBeHadError as error:
        print(error)  # the tests are skipped with it
