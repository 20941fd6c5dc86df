"""Builds the project's images through its Dockerfile, on a local base image, into archives that containerd imports.

    python tests/kube/images/build.py [operator] [runtime]

Prints the path of each archive, one a line; progress goes to stderr. An archive is kept under the hash of all that goes
into it, and `images/<target>.tar` of the cache folder leads to the newest. Where only Python files changed, one thin
layer is built.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import cache
from images.engine import Engine, digest

HERE = Path(__file__).resolve().parent
TARGETS = ("operator", "runtime")
INPUTS = ("Dockerfile", ".containerignore", "pyproject.toml", "uv.lock", "README.md", "LICENSE", "hatch_build.py")
INPUTS += ("workers", "operator")
RELEASE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
# What a small image does not need of Debian's packages.
NEEDLESS = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")


def image(target: str) -> str:
    """The name under which a target's archive is imported."""
    return f"dljob.local/{target}:dev"


def folder() -> Path:
    """Where archives and the engine's storage are kept."""
    return cache.home() / "images"


def say(words: str) -> None:
    """Progress."""
    print(words, file=sys.stderr, flush=True)


def base_name() -> str:
    """The base image, by its recipe."""
    recipe = (HERE / "base.Containerfile").read_bytes()
    return f"localhost/dljob-base:{digest(recipe, RELEASE, PACKAGES, *NEEDLESS)}"


def inputs() -> str:
    """The hash of all that goes into the images."""
    parts: list[str | bytes] = [base_name(), *((HERE / name).read_bytes() for name in ("build.py", "engine.py"))]
    for name in INPUTS:
        top = cache.ROOT / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                parts += [str(file.relative_to(cache.ROOT)), file.read_bytes()]
    return digest(*parts)


def base(engine: Engine) -> str:
    """The name of the base image, which is made when it is not there.

    Raises:
        MissingError: Debian's packages cannot be fetched.
    """
    name = base_name()
    if engine.has(name):
        return name
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=engine.folder / "tmp") as work:
        root = Path(work) / "root"
        keyring = engine.root / "usr/share/keyrings/debian-archive-keyring.gpg"
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--keyring={keyring}",
            f"--include={PACKAGES}",
            RELEASE,
            str(root),
        ]
        env = {key: value for key, value in engine.env().items() if key != "TMPDIR"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise cache.MissingError(f"debootstrap made no base image: {done.stdout.strip()[-1500:]}")
        for needless in NEEDLESS:
            for item in (root / needless).iterdir():
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        subprocess.run(
            ["tar", "--numeric-owner", "--one-file-system", "-cf", f"{work}/rootfs.tar", "-C", str(root), "."],
            check=True,
        )
        shutil.rmtree(root)
        engine.build(Path(work), HERE / "base.Containerfile", name)
    say(f"base image in {time.monotonic() - begin:.0f} s")
    return name


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """One build at a time on this machine, for this user."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(target: str, archive: Path) -> None:
    """Build one target into an archive."""
    begin = time.monotonic()
    engine = Engine.make(folder() / "engine")
    name = base(engine)
    context = cache.ROOT
    ignore = f"--ignorefile={context}/.containerignore"
    said = engine.build(
        context, context / "Dockerfile", image(target), f"--build-arg=BASE={name}", f"--target={target}", ignore
    )
    built = time.monotonic() - begin
    engine.save(image(target), archive)
    written = time.monotonic() - begin - built
    say(f"{target}: built in {built:.0f} s, {said.count('Using cache')} steps from earlier; written in {written:.0f} s")


def publish(archive: Path) -> None:
    """Let `images/<target>.tar` lead to an archive, and remove those that are older than the one before."""
    link = folder() / archive.name
    new = link.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.link(archive, new)
    new.rename(link)
    os.utime(archive)
    older = sorted(folder().glob(f"*/{archive.name}"), key=lambda path: path.stat().st_mtime, reverse=True)[2:]
    for path in older:
        path.unlink()
    for place in folder().iterdir():
        with contextlib.suppress(OSError):  # a file, or a folder that holds archives
            place.rmdir()


def archives(targets: Sequence[str] = TARGETS) -> list[Path]:
    """The archives of targets, built when they are not there.

    Raises:
        MissingError: this machine cannot build images; the message says what it would take.
        RuntimeError: a build failed; with the end of what it said.
    """
    with lock():
        made = [folder() / inputs() / f"{target}.tar" for target in targets]
        for target, archive in zip(targets, made, strict=True):
            if not archive.exists():
                archive.parent.mkdir(exist_ok=True)
                build(target, archive)
            publish(archive)
    return made


def main(arguments: Sequence[str]) -> int:
    """Build what is named, or all; 0, 2 for an unknown target, 3 where this machine cannot."""
    if unknown := set(arguments) - set(TARGETS):
        say(f"unknown target {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
        return 2
    try:
        for path in archives(arguments or TARGETS):
            print(path)
    except cache.MissingError as error:
        say(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
