"""Packing of a code folder into an archive for a ConfigMap; the same files always give the same archive."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dljob.api.kubernetes.ignore import FILES, IgnorePattern, ignored, rules
from dljob.errors import UsageError

LIMIT = 1024 * 1024
"""Most bytes in a ConfigMap. Source: Kubernetes, MaxSecretSize, which also applies to ConfigMaps."""
MOST_FILES = 5_000
MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of files that are read: a larger folder would not compress to LIMIT."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip entry; real times would change the archive
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Package:
    """The code of a job, packed."""

    archive: bytes
    """A zip file."""
    digest: str
    """Eight hex digits of a hash over the files' names, modes and contents."""
    files: tuple[str, ...]
    """Relative paths, sorted."""
    links: tuple[str, ...] = ()
    """Links to folders or out of the folder; they are left out."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    name: str
    size: int
    mode: int


def pack(folder: Path) -> Package:
    """Pack a folder, without what its ignore files name.

    Raises:
        UsageError: the folder does not exist, cannot be read, is empty, or is too large for a ConfigMap.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise UsageError(f"the code folder {folder} does not exist", hint="see spec.code.workingDir")
    links: list[str] = []
    entries: list[_Entry] = []
    total = 0
    for entry in _walk(root, root, _from_above(root), links):
        entries.append(entry)
        total += entry.size
        # While walking, not after it: a home folder or a data set must not be read to its end first.
        if len(entries) > MOST_FILES or total > MOST_BYTES:
            raise _too_large(folder, f"holds more than {MOST_FILES} files or {size(MOST_BYTES)}", entries)
    if not entries:
        raise UsageError(f"the code folder {folder} has no file, or ignored ones only", hint=f"see {FILES[1]}")
    # The walk sorts within folders; the archive, and with it the digest, needs one order for all.
    entries.sort(key=lambda e: e.name)
    archive, digest = _zip(entries)
    if len(archive) > LIMIT:
        raise _too_large(folder, f"packs to {size(len(archive))}", entries)
    return Package(archive, digest, tuple(e.name for e in entries), tuple(sorted(links)))


def size(count: int) -> str:
    """Format bytes for people: 812 B, 3.4 KiB, 1.2 MiB."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def _walk(root: Path, folder: Path, known: tuple[IgnorePattern, ...], links: list[str]) -> Iterator[_Entry]:
    """Yield the files under a folder, sorted by name."""
    by = (*known, *_folder_rules(folder))
    try:
        items = sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        raise UsageError(f"cannot read the folder {folder}: {error.strerror}", hint=_LEAVE) from error
    for item in items:
        path = Path(item.path)
        if ignored(path.as_posix(), folder=item.is_dir(follow_symlinks=False), by=by):
            continue
        if item.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():  # marks a virtual environment, whatever its folder is called
                yield from _walk(root, path, by, links)
        elif item.is_symlink() and (not path.is_file() or not path.resolve().is_relative_to(root)):
            # Left out and named: a link to a home folder must not publish it in a namespace.
            links.append(path.relative_to(root).as_posix())
        elif item.is_file():
            yield _entry(root, path)


_LEAVE = f"make it readable, or name it in {FILES[1]}"


def _entry(root: Path, path: Path) -> _Entry:
    name = path.relative_to(root).as_posix()
    try:
        # Linux allows any bytes in a name, a zip entry does not.
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of the file {name!r} is not UTF-8", hint=f"rename it; {FILES[1]} may name it"
        ) from None
    status = path.stat()
    # Only the executable bit counts: umask and owner differ between checkouts, and would change the digest.
    return _Entry(path, name, status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def _folder_rules(folder: Path) -> list[IgnorePattern]:
    """Return the rules in a folder's own ignore files."""
    patterns: list[IgnorePattern] = []
    for name in FILES:
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        patterns += rules(text, folder.as_posix())
    return patterns


def _from_above(root: Path) -> tuple[IgnorePattern, ...]:
    """Return the rules of parent folders, up to the root of the git repository; none outside of one."""
    above: list[Path] = []
    for parent in (root, *root.parents):
        # As git: rules of folders outside of the repository do not apply.
        if (parent / ".git").exists():
            break
        # From the parent on: `_walk` reads the rules of the folder itself.
        above.append(parent.parent)
    else:
        return ()
    # Outermost first, since the last matching rule decides.
    return tuple(rule for folder in reversed(above) for rule in _folder_rules(folder))


def _zip(entries: list[_Entry]) -> tuple[bytes, str]:
    digest = hashlib.sha256()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry in entries:
            try:
                data = entry.path.read_bytes()
            except OSError as error:
                raise UsageError(f"cannot read {entry.path}: {error.strerror}", hint=_LEAVE) from error
            info = zipfile.ZipInfo(entry.name, _EPOCH)
            info.external_attr = (stat.S_IFREG | entry.mode) << 16
            info.create_system = 3  # Unix, on which the mode above is read
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=9)
            # With the length, so that no content can pass for the next file's header.
            digest.update(f"{entry.name}\0{entry.mode:o}\0{len(data)}\0".encode() + data)
    return out.getvalue(), digest.hexdigest()[:8]


def _too_large(folder: Path, problem: str, entries: list[_Entry]) -> UsageError:
    largest = sorted(entries, key=lambda e: (-e.size, e.name))[:_SHOWN]
    listed = ", ".join(f"{e.name} ({size(e.size)})" for e in largest)
    return UsageError(
        f"the code's folder {folder} {problem}; a ConfigMap holds {size(LIMIT)}. The largest files: {listed}",
        hint=f"name data in {FILES[1]}; or build the code into spec.image and give --no-upload; "
        "or point spec.runtimeEnv.working_dir at an archive",
    )
