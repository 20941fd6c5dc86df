"""python -m dljob.runtime.unpack: what the init container of every Ray pod runs, in an image that has dljob, not Ray.

It fills the folder that the pod's containers share: /dljob/lib with dljob and those of its requirements that Ray does
not bring, and /dljob/code with user code out of a ConfigMap. Run again, it leaves the same.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

from dljob.errors import DLJobError, UsageError
from dljob.raycluster import pods

BY_RAY = frozenset({"platformdirs", "pydantic", "typing-extensions"})
"""Requirements that ray[default] has too: of its virtualenv, its own, and pydantic's."""
NOT_IN_PODS = frozenset({"cyclopts", "rich"})
"""Requirements of the command alone."""
UNPACKED_BYTES = 64 << 20
"""Of an archive, unpacked: it came out of a ConfigMap of at most 1 MiB."""
FILES = 10_000
CHUNK = 1 << 20


def main() -> int:
    """Fill the folder; exit code 1 with a line on stderr when user code cannot be unpacked."""
    try:
        bring(Path(pods.LIB))
        found = unpack(Path(pods.CODE_SOURCE), Path(pods.CODE))
    except (DLJobError, OSError) as error:
        print(f"[dljob] {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"[dljob] {pods.LIB}: {', '.join(brought())}; {pods.CODE}: {found} files")  # noqa: T201
    return 0


# -- dljob


def brought() -> tuple[str, ...]:
    """The distributions that come along: dljob, and what it needs in a pod beyond Ray's own."""
    found, waiting = list[str](), ["dljob"]
    while waiting:
        name = waiting.pop()
        if name in found or name in BY_RAY or name in NOT_IN_PODS:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # wanted by another Python or system than this
        found.append(name)
        waiting += [_name(line) for line in requires if "extra ==" not in line]
    return tuple(found)


def bring(lib: Path) -> None:
    """Replace `lib` by what comes along. Compiled files come too: who runs there may not write any."""
    fresh = _fresh(lib)
    _copy_tree(Path(__file__).parents[2], fresh / "dljob")
    for name in brought():
        for source, target in _files(metadata.distribution(name)):
            _copy(source, fresh / target)
    _settle(fresh, lib)


def _files(distribution: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    """(file, where it goes): what was installed into site-packages, and not beside it, as scripts are."""
    for path in distribution.files or ():
        source = Path(str(distribution.locate_file(path)))
        if ".." not in path.parts and path.suffix != ".pth" and path.parts[0] != "dljob_operator" and source.is_file():
            yield source, str(path)


def _name(requirement: str) -> str:
    """`Ruamel.Yaml>=0.18` is ruamel-yaml."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group() if match else requirement).lower()


# -- user code


def unpack(source: Path, code: Path) -> int:
    """Replace `code` by the keys of a mounted ConfigMap: the archive unpacked, every other key a file. How many files.

    Without a ConfigMap there is no folder: then user code is in the image, or comes with the runtime environment.

    Raises:
        UsageError: the archive is none, or holds what must not be unpacked.
    """
    # What begins with two dots is the kubelet's own: keys are links into a folder of that name.
    keys = sorted(p for p in source.iterdir() if not p.name.startswith("..")) if source.is_dir() else []
    if not keys:
        shutil.rmtree(code, ignore_errors=True)
        return 0
    fresh = _fresh(code)
    count = 0
    for key in sorted(keys, key=lambda path: path.name != pods.ARCHIVE):
        if key.name == pods.ARCHIVE:
            count += _unzip(key, fresh)
        else:
            _copy(key, fresh / key.name)
            count += 1
    _settle(fresh, code)
    return count


def _unzip(archive: Path, folder: Path) -> int:
    left, count = UNPACKED_BYTES, 0
    try:
        with zipfile.ZipFile(archive) as packed:
            if len(packed.infolist()) > FILES:
                raise _refused(f"holds more than {FILES} entries")
            for entry in packed.infolist():
                target = folder / _inside(entry)
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                left -= _extract(packed, entry, target, left)
                count += 1
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise _refused(f"cannot be unpacked: {error}") from error
    return count


def _inside(entry: zipfile.ZipInfo) -> str:
    """The entry's path, if it is a plain file or folder below where it is unpacked."""
    path = PurePosixPath(entry.filename)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or not path.parts:
        raise _refused(f"holds {entry.filename!r}, which is not below its folder")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(f"holds {entry.filename!r}, which is a link or a device: put the file itself there")
    return str(path)


def _extract(packed: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, left: int) -> int:
    """Write a file of at most `left` bytes, whatever the archive says of its size; how many they were."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with packed.open(entry) as data, target.open("wb") as out:
        while chunk := data.read(CHUNK):
            size += len(chunk)
            if size > left:
                raise _refused(f"unpacks to more than {UNPACKED_BYTES >> 20} MiB: put large files into the image")
            out.write(chunk)
    target.chmod(0o755 if entry.external_attr >> 16 & 0o111 else 0o644)
    return size


def _refused(why: str) -> UsageError:
    return UsageError(f"user code: the key {pods.ARCHIVE} {why}", hint="make it anew, with zip -r or dljob submit")


# -- files


def _fresh(folder: Path) -> Path:
    """An empty folder beside this one, without what a try before has left."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def _settle(fresh: Path, folder: Path) -> None:
    """Put the new folder into its place, open to every user of the pod."""
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def _copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    """A file, with its time: compiled files are valid for a source of that time only."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    info = source.stat()
    target.chmod(0o755 if info.st_mode & 0o100 else 0o644)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main())
