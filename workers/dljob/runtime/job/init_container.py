"""The init container of every Ray pod: `python -m dljob.runtime.unpack`, in an image that has dljob but no Ray.

It fills the folder that the pod's containers share: /dljob/lib with dljob and those of its requirements that Ray does
not bring, and /dljob/code with user code out of a ConfigMap. Each folder is built beside its place and then renamed, so
that a second run, or one after a crash, leaves the same.

On a worker it then waits for the port of the head. KubeRay's own container follows, which starts `ray health-check`
with a fifth of a CPU, and sleeps for 5 s where that was too early (KubeRay 1.6.2, common/pod.go): now it seldom is.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

from dljob.errors import DLJobError, UsageError
from dljob.raycluster import pods
from dljob.runtime.process.extensions import TOOLS_DISTRIBUTION, check_version
from dljob.telemetry.wording import counted

BY_RAY = frozenset({"platformdirs", "pydantic", "typing-extensions"})
"""Requirements that ray[default] brings too: through its virtualenv, by itself, and through pydantic."""
NOT_IN_PODS = frozenset({"cyclopts", "rich"})
"""Requirements of the command line alone."""
UNPACKED_BYTES = 64 << 20
"""Most bytes of an unpacked archive. It came out of a ConfigMap of at most 1 MiB, and may be a zip bomb."""
FILES = 10_000
"""Most entries of an archive."""
CHUNK = 1 << 20
HEAD_S = 120.0
"""Most seconds that a worker waits for its head here; after that KubeRay's container does."""
FIRST_S, MOST_S, PART = 0.1, 5.0, 8
"""Pauses between two looks for the head: an eighth of the time waited, within bounds. So a head that is soon there is
soon seen, and one whose image takes minutes is not asked ten times a second by a thousand pods."""


def main() -> int:
    """Fill the folders; exit code 1 with a line on stderr when user code cannot be unpacked."""
    try:
        bring(Path(pods.LIB), with_tools=pods.WITH_TOOLS in sys.argv)
        file_count = unpack(Path(pods.CODE_SOURCE), Path(pods.CODE))
    except (DLJobError, OSError) as error:
        print(f"[dljob] {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"[dljob] {pods.LIB}: {', '.join(brought())}; {pods.CODE}: {counted(file_count, 'file')}")  # noqa: T201
    # KubeRay tells each init container the name of the head's service.
    if pods.AWAIT_HEAD in sys.argv and (host := os.environ.get("FQ_RAY_IP")):
        port = int(sys.argv[sys.argv.index(pods.AWAIT_HEAD) + 1])
        took = await_head(host, port)
        head_text = f"no answer for {HEAD_S:g} s" if took is None else f"there after {took:.1f} s"
        print(f"[dljob] head {host}:{port}: {head_text}")  # noqa: T201
    return 0


# -- dljob


def brought() -> tuple[str, ...]:
    """Return the distributions to copy: dljob, and its requirements that Ray does not bring."""
    distributions_so_far, waiting = list[str](), ["dljob"]
    while waiting:
        name = waiting.pop()
        if name in distributions_so_far or name in BY_RAY or name in NOT_IN_PODS:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # a requirement under a marker for another Python or system
        distributions_so_far.append(name)
        # Extras are left out: a pod needs what dljob itself imports.
        waiting += [_name(line) for line in requires if "extra ==" not in line]
    return tuple(distributions_so_far)


def bring(lib: Path, *, with_tools: bool = False) -> None:
    """Replace `lib`. Compiled files are copied too, since the pod's user may not be allowed to write any.

    Raises:
        UsageError: The job needs dljob-tools, and this image has neither the package nor its wheel.
    """
    fresh = _fresh(lib)
    _copy_tree(Path(__file__).parents[2], fresh / "dljob")
    if with_tools:
        _bring_tools(fresh)
    for name in brought():
        for source, target in _files(metadata.distribution(name)):
            _copy(source, fresh / target)
    _settle(fresh, lib)


def _bring_tools(fresh: Path) -> None:
    try:
        installed = metadata.distribution(TOOLS_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        wheel = next(Path(pods.TOOLS_WHEEL_FOLDER).glob(f"dljob_tools-{metadata.version('dljob')}-*.whl"), None)
        if wheel is None:
            raise UsageError(
                "the job runs dljob.compat, and this image has no dljob-tools of its version",
                hint="let the operator's --init-image be the operator's own image",
            ) from None
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh)
    else:
        check_version(installed, "the job runs dljob.compat")
        for source, target in _files(installed):
            _copy(source, fresh / target)


def _files(distribution: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """Yield (file, target) of the files of a distribution in site-packages, without scripts beside it."""
    for path in distribution.files or ():
        source = Path(str(distribution.locate_file(path)))
        # A .pth file would run code at the start of every Python in the pod.
        if ".." not in path.parts and path.suffix != ".pth" and path.parts[0] != "dljob_operator" and source.is_file():
            yield source, str(path)


def _name(requirement: str) -> str:
    """Normalize a requirement's name: `Ruamel.Yaml>=0.18` becomes ruamel-yaml."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group() if match else requirement).lower()


# -- user code


def unpack(source: Path, code: Path) -> int:
    """Replace `code` by the keys of a mounted ConfigMap, with the archive unpacked; return the number of files.

    Without a ConfigMap the folder is removed: user code is in the image, or comes with the runtime environment.

    Raises:
        UsageError: The archive is not a zip file, or has entries that must not be unpacked.
    """
    # The kubelet mounts keys as links into a folder of its own, whose name begins with two dots.
    keys = sorted(p for p in source.iterdir() if not p.name.startswith("..")) if source.is_dir() else []
    if not keys:
        shutil.rmtree(code, ignore_errors=True)
        return 0
    fresh = _fresh(code)
    count = 0
    # The archive first, so that a key of its own replaces a file of the same name in it.
    for key in sorted(keys, key=lambda path: path.name != pods.ARCHIVE):
        if key.name == pods.ARCHIVE:
            count += _unzip(key, fresh)
        else:
            _copy(key, fresh / key.name)
            count += 1
    _settle(fresh, code)
    return count


def _unzip(archive: Path, folder: Path) -> int:
    bytes_left, count = UNPACKED_BYTES, 0
    try:
        with zipfile.ZipFile(archive) as packed:
            # Before anything is unpacked: a bomb may also consist of very many small files.
            if len(packed.infolist()) > FILES:
                raise _refused(f"holds more than {FILES} entries")
            for entry in packed.infolist():
                target = folder / _inside(entry)
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                bytes_left -= _extract(packed, entry, target, bytes_left)
                count += 1
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise _refused(f"cannot be unpacked: {error}") from error
    return count


def _inside(entry: zipfile.ZipInfo) -> str:
    """Return the entry's path if it is a plain file or a folder below the target. Raises UsageError if not."""
    path = PurePosixPath(entry.filename)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or not path.parts:
        raise _refused(f"holds {entry.filename!r}, which is not below its folder")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(f"holds {entry.filename!r}, which is a link or a device: put the file itself there")
    return str(path)


def _extract(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, bytes_left: int) -> int:
    """Write an entry of at most `bytes_left` bytes; return its size.

    The size is counted while it is unpacked, since the archive may claim another one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with packed.open(entry) as data, target.open("wb") as out:
        while chunk := data.read(CHUNK):
            size += len(chunk)
            if size > bytes_left:
                raise _refused(f"unpacks to more than {UNPACKED_BYTES >> 20} MiB: put large files into the image")
            out.write(chunk)
    target.chmod(0o755 if entry.external_attr >> 16 & 0o111 else 0o644)
    return size


def _refused(reason: str) -> UsageError:
    return UsageError(
        f"user code: the key {pods.ARCHIVE} {reason}", hint="create it again, with zip -r or dljob submit"
    )


# -- the head


def await_head(host: str, port: int, within: float = HEAD_S) -> float | None:
    """Wait until a port of the head can be connected to; return the seconds that it took, None if it could not."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < within:
        try:
            socket.create_connection((host, port), timeout=MOST_S).close()
        except OSError:  # no address yet, or nobody listens
            time.sleep(min(MOST_S, max(FIRST_S, waited / PART)))
        else:
            return waited
    return None


# -- files


def _fresh(folder: Path) -> Path:
    """Return an empty folder beside this one, without remains of an earlier run."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def _settle(fresh: Path, folder: Path) -> None:
    """Move the new folder into place, readable by every user of the pod."""
    # The init container may run as another user than the pod's containers.
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    # A rename cannot replace a folder that is not empty.
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its modification time, which compiled files record: with another one they are stale."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    info = source.stat()
    target.chmod(0o755 if info.st_mode & 0o100 else 0o644)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main())
