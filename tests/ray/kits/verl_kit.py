"""verl's published code: its wheel, unpacked once into the tests' cache and never installed.

The package imports transformers and OmegaConf at once, some hundred MB with their dependencies, but its single
controller uses them only in annotations. Empty classes stand in for them; verl itself is unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

VERSION = "0.9.1"
SHA256 = "db6e6f2a8d9d5808d9ec32d357a42319fdc6967df688ff9d9810050f49bfdd14"
STAND_INS = {"transformers": ("PreTrainedTokenizer",), "omegaconf": ("DictConfig", "ListConfig", "OmegaConf")}
UV = Path(__file__).parents[3] / ".uv" / "bin" / "uv"


def root() -> Path:
    """Return the folder that holds the package `verl`; skips the test where it is not available."""
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    home = cache / f"verl-{VERSION}-{SHA256[:12]}"
    if home.exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        wanted = Path(work, "wanted.txt")
        wanted.write_text(f"verl=={VERSION} --hash=sha256:{SHA256}\n")
        fetch = [str(UV) if UV.exists() else "uv", "pip", "install", "--quiet", "--python", sys.executable]
        fetch += ["--no-deps", "--require-hashes", "--target", f"{work}/site", "-r", str(wanted)]
        try:
            done = subprocess.run(fetch, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"verl {VERSION} cannot be fetched here, and {home} is not there: {error}")
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing was said"]
            pytest.skip(f"verl {VERSION} cannot be fetched here, and {home} is not there: {said[-1]}")
        Path(work, "new").mkdir()
        Path(work, "site", "verl").rename(Path(work, "new", "verl"))
        with suppress(OSError):  # Another run created it first.
            Path(work, "new").rename(home)
    return home


def code(folder: Path, *modules: Path) -> Path:
    """Return a code folder with these modules, verl, and stand-ins for the packages that it does not use."""
    folder.mkdir()
    (folder / "verl").symlink_to(root() / "verl")
    for name, classes in STAND_INS.items():
        (folder / f"{name}.py").write_text("".join(f"class {one}: ...\n" for one in classes))
    for module in modules:
        shutil.copy(module, folder)
    return folder


if __name__ == "__main__":
    print(root())
