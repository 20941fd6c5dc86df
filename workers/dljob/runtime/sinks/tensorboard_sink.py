"""TensorBoard's event files, which need no package to be written: its own writers import 300 MB of torch.

A file is a sequence of TFRecords: length, its checksum, an Event as protobuf, and the checksum of that. Only the fields
that scalars need are written; numbers below are those of `event.proto` and `summary.proto`, which do not change.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from io import RawIOBase
from typing import cast

from dljob.runtime.sinks.sink import SinkRun

_VERSION = b"brain.Event:2"
"""From this version on, the record of a session's start voids the steps from its own on."""
_POLYNOMIAL = 0x82F63B78


def _table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_table())


class TensorBoardSink:
    """Writes event files into one folder: a new one after each way back, whose first records void the later steps."""

    def __init__(self, run: SinkRun) -> None:
        self._run = run
        self._file: RawIOBase | None = None

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Write the metrics of a step."""
        if self._file is None:
            self._open()
            # An earlier process may have written further than it could save: void in any case what follows.
            if self._run.resumed:
                self._void(step)
        values = b"".join(_field(1, _field(1, name.encode()) + _float(2, value)) for name, value in metrics.items())
        self._put(at, step, _field(5, values))

    def rewind(self, step: int) -> None:
        """Begin a file that voids all that was written from `step` on."""
        self.close()
        self._open()
        self._void(step)

    def close(self) -> None:
        """Close the file. Nothing is buffered."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._run.folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        path = self._run.folder / f"events.out.tfevents.{time.time_ns()}.dljob"
        self._file = cast("RawIOBase", path.open("xb", buffering=0))
        self._put(time.time(), 0, _field(3, _VERSION))

    def _void(self, step: int) -> None:
        self._put(time.time(), step, _field(7, _number(1, 1)))  # a SessionLog whose status is START

    def _put(self, at: float, step: int, payload: bytes) -> None:
        event = struct.pack("<Bd", 1 << 3 | 1, at) + _number(2, step) + payload
        length = struct.pack("<Q", len(event))
        record = length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))
        cast("RawIOBase", self._file).write(record)


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of a part of a TFRecord, rotated and shifted as the format has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    # An int64 below 0 is written as its two's complement.
    return _varint(field << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float(field: int, value: float) -> bytes:
    try:
        return struct.pack("<Bf", field << 3 | 5, value)
    except OverflowError:  # a float64 beyond what a float32 holds
        return struct.pack("<Bf", field << 3 | 5, float("inf") if value > 0 else float("-inf"))
