"""Reader of TensorBoard's event files: framing and protobuf by hand, so that it shares no code with their writers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TABLE = [0] * 256
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    _TABLE[_n] = _c
START = 1


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: Path) -> Iterator[bytes]:
    """The records of a file; fails at a wrong checksum or a torn end."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = data[at : at + 8]
        (size,) = struct.unpack("<Q", length)
        assert struct.unpack_from("<I", data, at + 8) == (masked_crc(length),)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size) == (masked_crc(body),)
        yield body
        at += 16 + size


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protobuf message: integers, doubles, floats, and bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(message):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 1:
                yield key >> 3, struct.unpack_from("<d", message, at)[0]
                at += 8
            case 2:
                size = varint()
                yield key >> 3, message[at : at + size]
                at += size
            case _:
                yield key >> 3, struct.unpack_from("<f", message, at)[0]
                at += 4


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) as TensorBoard shows them: a session's start voids what has its step or a later one."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in records(path):
            event = dict(fields(record))
            step = event.get(2, 0)
            if 7 in event and dict(fields(event[7])).get(1) == START:
                found = {tag: [p for p in points if p[0] < step] for tag, points in found.items()}
            for number, value in fields(event.get(5, b"")):
                assert number == 1
                scalar = dict(fields(value))
                found.setdefault(scalar[1].decode(), []).append((step, scalar[2]))
    return found
