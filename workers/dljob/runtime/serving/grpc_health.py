"""One call of `grpc.health.v1.Health/Check`, by hand: a request of fixed shape over HTTP/2 (RFC 9113, HPACK RFC 7541).

Ray brings grpcio with some extras only, and it is not safe to fork, as hosts do; and this reads a bounded answer.
"""

from __future__ import annotations

import asyncio

SERVING = 1
STATUSES = {0: "UNKNOWN", SERVING: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
"""`HealthCheckResponse.ServingStatus`."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_STREAM = 1


class NoStatusError(ValueError):
    """The server ended the call without an answer; the message says how."""


async def check(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, service: str, most: int
) -> int:
    """Ask for the status of a service ("" is the whole server); at most `most` bytes are read.

    Raises:
        NoStatusError: The server has no such service, or ended the call.
        ValueError: What it sends is no HTTP/2, or too much of it.
        EOFError: The connection ended before the answer.
    """
    writer.write(request(authority, service))
    message = b""
    while True:
        kind, flags, stream, payload = await _frame(reader, most)
        most -= 9 + len(payload)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            # A server may wait for both before it answers.
            writer.write(frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY:
            raise NoStatusError(f"the server closes the connection (HTTP/2 error {int.from_bytes(payload[4:8])})")
        elif kind == _RST_STREAM and stream == _STREAM:
            raise NoStatusError(f"the server ended the call (HTTP/2 error {int.from_bytes(payload)})")
        elif kind == _DATA and stream == _STREAM:
            message += payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload
        if len(message) >= 5 and len(message) >= 5 + int.from_bytes(message[1:5]):
            return _status(message[5 : 5 + int.from_bytes(message[1:5])])
        if stream == _STREAM and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            named = f"service {service!r}" if service else "the server as a whole"
            raise NoStatusError(f"no status: it has no grpc.health.v1.Health, or that knows no {named}")


def request(authority: str, service: str) -> bytes:
    """Return the bytes of the whole call: preface, settings, headers and the message."""
    name = service.encode()
    body = b"\x0a" + _varint(len(name)) + name if name else b""
    headers = (
        b"\x83\x86"  # :method POST and :scheme http, of the static table
        b"\x04" + _text("/grpc.health.v1.Health/Check")  # :path
        + b"\x01" + _text(authority)  # :authority
        + b"\x0f\x10" + _text("application/grpc")  # content-type
        + b"\x00\x02te\x08trailers"
    )  # fmt: skip
    return (
        _PREFACE
        + frame(_SETTINGS, 0, 0, b"")
        + frame(_HEADERS, _END_HEADERS, _STREAM, headers)
        + frame(_DATA, _END_STREAM, _STREAM, b"\x00" + len(body).to_bytes(4) + body)
    )


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def _frame(reader: asyncio.StreamReader, most: int) -> tuple[int, int, int, bytes]:
    head = await reader.readexactly(9)
    length = int.from_bytes(head[:3])
    if 9 + length > most:
        raise ValueError(f"it begins with {head!r}")
    return head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF, await reader.readexactly(length)


def _status(message: bytes) -> int:
    """Return field 1 of a HealthCheckResponse; 0, as protobuf has it, where it is left out."""
    return message[1] if len(message) >= 2 and message[0] == 0x08 else 0


def _text(words: str) -> bytes:
    return bytes([len(words)]) + words.encode()


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 0x7F | 0x80, number >> 7])
