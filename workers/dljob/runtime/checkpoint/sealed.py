"""Sealed JSON: metadata whose last member is the CRC-32 of all text before it.

    {
     "version": 2,
     ...
     "crc32": "0a1b2c3d"
    }

Any JSON tool reads it, and every flipped bit is detected: one in the text fails the checksum; one in the seal leaves
text that is neither sealed nor exactly what versions without seals wrote.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

_SEAL = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n\}\n\Z')


class DamagedError(Exception):
    """Metadata that cannot be trusted; the message says why."""


class NewerFormatError(DamagedError):
    """Metadata that a later dljob wrote: this one can neither read it nor know that nobody needs it."""

    def __init__(self, version: int, readable: int) -> None:
        super().__init__(newer_format(version, readable))


def newer_format(version: int, readable: int) -> str:
    """Return the message about a file of a later format; `readable`: the latest format that this dljob reads."""
    return f"format {version} is newer than this dljob's, {readable}"


@dataclass(frozen=True, slots=True)
class Unsealed:
    """Parsed metadata. `checked`: its checksum matched; versions before 2 wrote none."""

    body: Mapping[str, Any]
    checked: bool


def seal(body: Mapping[str, Any]) -> bytes:
    """Return the text of a JSON object with its checksum."""
    text = json.dumps(body, indent=1).removesuffix("\n}").encode()
    return text + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(text)


def unseal(data: bytes, keys: frozenset[str], indent: int | None, *, version: int) -> Unsealed:
    """Parse a metadata file and verify its checksum.

    Args:
        data: The file's bytes.
        keys: The members of the same file without a seal, as earlier versions wrote it.
        indent: The indentation of these versions.
        version: The latest format that the caller reads, by the member `version`.

    Raises:
        NewerFormatError: A later dljob wrote it.
        DamagedError: The checksum does not match, or the file is neither sealed nor what an earlier version wrote.
    """
    if (found := _SEAL.search(data)) is None:
        body = _parsed(data)
        # A later format may have another seal.
        _refuse_newer(body, version)
        # Written again and compared byte by byte: a flip in the name of the seal must not pass for a file of version 1
        # (ADR 69).
        plain = isinstance(body, dict) and keys == cast("dict[str, Any]", body).keys()
        if not plain or json.dumps(body, indent=indent).encode() != data:
            raise DamagedError("it is neither sealed by a checksum nor as an earlier version wrote it")
        return Unsealed(cast("dict[str, Any]", body), checked=False)
    crc = zlib.crc32(data[: found.start()])
    if crc != int(found[1], 16):
        raise DamagedError(f"its CRC-32 is {crc:08x}, but {found[1].decode()} was written")
    body = _parsed(data)
    _refuse_newer(body, version)
    return Unsealed(cast("dict[str, Any]", body), checked=True)


def _refuse_newer(body: object, readable: int) -> None:
    written = cast("dict[str, Any]", body).get("version") if isinstance(body, dict) else None
    if isinstance(written, int) and written > readable:
        raise NewerFormatError(written, readable)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError("it is no JSON" if data else "it is empty") from error
