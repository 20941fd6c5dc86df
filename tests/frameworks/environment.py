"""The environments of published frameworks: locked with hashes, made once for each lock, in the tests' cache.

Versions that dljob's own lock has are taken from it, so that uv links the same files into each environment: torch is on
the disk once. dljob itself is in none: each checkout adds its sources by PYTHONPATH. DeepSpeed has one of its own, as
transformers, accelerate and TRL import it wherever it is installed; so has vLLM, whose pins name other versions, and
TensorFlow, without torch. The peers in tests/bench/peers have environments without dljob's requirements. What
NAME.override says takes the place of pins, its line `; sys_platform == "never"` leaves a package out.

    .venv/bin/python tests/frameworks/environment.py           # make them, and say where they are
    .venv/bin/python tests/frameworks/environment.py --lock    # write the locks anew
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = ("environment", "deepspeed", "tensorflow", "verl", "vllm")
"""Each has a file NAME.in of what is wanted, and NAME.lock of what is installed; NAME.override lifts bounds, if any."""
PEERS = ROOT / "tests" / "bench" / "peers"
NAMES_OF_PEERS = ("dlrover", "ray_train")
"""The same, in the folder of the peers."""
WITHOUT_TORCH = ("tensorflow",)
UV = ROOT / ".uv" / "bin" / "uv"
MINUTES = 15
"""As long as making it may take on a machine that has none of its packages."""


class NotToBeHadError(Exception):
    """The environment is not in the cache, and cannot be made here."""


def _uv(*words: str | Path) -> str:
    program = str(UV) if UV.exists() else "uv"
    done = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, timeout=60 * MINUTES, check=True)
    return done.stdout


def make(name: str = "environment", folder: Path = HERE) -> Path:
    """Return the python of an environment, once it is there."""
    lock = folder / f"{name}.lock"
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    home = cache / f"frameworks-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            new = Path(work, "new")
            try:
                _uv("venv", "--quiet", f"--python={sys.executable}", "--relocatable", new)
                _uv("pip", "sync", "--quiet", "--require-hashes", f"--python={new}/bin/python", lock)
            except (OSError, subprocess.SubprocessError) as error:
                said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
                raise NotToBeHadError(
                    f"the environment {name} of the frameworks cannot be made here, and {home} is not there: {said}"
                ) from error
            with suppress(OSError):  # Another run created it first.
                new.rename(home)
    python = home / "bin" / "python"
    if name == "deepspeed":
        _compile(python)
    return python


def extensions(python: Path) -> Path:
    """Return the folder of what torch compiles for the scripts of an environment."""
    return python.parents[1] / "extensions"


def _compile(python: Path) -> None:
    """Compile, once, what `deepspeed.init_distributed` would: ranks killed meanwhile would leave its lock for ever."""
    made = extensions(python) / "deepspeed_shm_comm"
    if (made / "deepspeed_shm_comm.so").exists():
        return
    (made / "lock").unlink(missing_ok=True)  # of one that was ended
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # where ninja is
    env = {**os.environ, "TORCH_EXTENSIONS_DIR": str(extensions(python)), "CUDA_VISIBLE_DEVICES": "", "PATH": path}
    command = [python, "-c", "from deepspeed.comm.torch import build_shm_op; build_shm_op()"]
    try:
        subprocess.run(command, env=env, capture_output=True, text=True, timeout=60 * MINUTES, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise NotToBeHadError(f"DeepSpeed's operator cannot be compiled here: {said}") from error


def write_locks() -> None:
    """Write each NAME.lock: NAME.in and dljob's own requirements, in the versions of uv.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    with tempfile.TemporaryDirectory() as work:
        known = Path(work, "known.txt")
        export = ("export", "--frozen", "--all-extras", "--no-default-groups", "--no-emit-workspace", "--no-hashes")
        known.write_text(_uv(*export))
        wanted = Path(work, "ours.in")
        for name in NAMES:
            needed = ("runtime", "http") if name in WITHOUT_TORCH else ("runtime", "torch", "http")
            ours = (*project["dependencies"], *(one for extra in needed for one in extras[extra]))
            wanted.write_text("\n".join(ours))
            _lock(HERE / name, known, wanted)
        wanted.write_text("")
        for name in NAMES_OF_PEERS:
            _lock(PEERS / name, known, wanted)


def _lock(environment: Path, known: Path, wanted: Path) -> None:
    """Write the lock of one environment: its own file and `wanted`, in the versions of `known`."""
    compile_ = ("pip", "compile", "--quiet", f"--python={sys.executable}", "--generate-hashes", "--no-annotate")
    override = environment.with_suffix(".override")
    lifted = ["--override", override] if override.exists() else []
    into = [environment.with_suffix(".in"), wanted, "-o", environment.with_suffix(".lock")]
    _uv(*compile_, "--no-header", "-c", known, *lifted, *into)


if __name__ == "__main__":
    if sys.argv[1:] == ["--lock"]:
        write_locks()
    for each in NAMES:
        begun = time.monotonic()
        try:
            print(f"{make(each)} {time.monotonic() - begun:.0f} s")
        except NotToBeHadError as error:
            print(error)  # the tests are skipped with it
