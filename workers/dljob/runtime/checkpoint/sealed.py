"""Sealed JSON: metadata whose last member is the CRC-32 of all text before it.

    {
     "version": 2,
     ...
     "crc32": "0a1b2c3d"
    }

Any JSON tool reads it, and every flipped bit is detected: one in the text fails the checksum; one in the seal leaves
text without one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
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


def seal(body: Mapping[str, Any]) -> bytes:
    """Return the text of a JSON object with its checksum."""
    text = json.dumps(body, indent=1).removesuffix("\n}").encode()
    return text + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(text)


def unseal(data: bytes, *, version: int) -> Mapping[str, Any]:
    """Parse a metadata file and verify its checksum.

    Args:
        data: The file's bytes.
        version: The latest format that the caller reads, by the member `version`.

    Raises:
        NewerFormatError: A later dljob wrote it.
        DamagedError: The checksum does not match, or there is none.
    """
    if (seal_match := _SEAL.search(data)) is None:
        _refuse_newer(_parsed(data), version)  # a later format may have another seal
        raise DamagedError("it is not sealed by a checksum")
    crc = zlib.crc32(data[: seal_match.start()])
    if crc != int(seal_match[1], 16):
        raise DamagedError(f"its CRC-32 is {crc:08x}, but {seal_match[1].decode()} was written")
    body = _parsed(data)
    _refuse_newer(body, version)
    return cast("dict[str, Any]", body)


def _refuse_newer(body: object, readable: int) -> None:
    written = cast("dict[str, Any]", body).get("version") if isinstance(body, dict) else None
    if isinstance(written, int) and written > readable:
        raise NewerFormatError(written, readable)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError("it is no JSON" if data else "it is empty") from error
