"""The TCP connection between two nodes of a chain: both prove that they know the version's secret.

The keeper makes a secret for each version, and passes it in calls of Ray. It is in no argument of a process, and goes
over no connection of this kind: each end answers the other's random challenge with an HMAC.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import time

from dljob.runtime.weights.chain import STALL_S

CHALLENGE = 32
DIGEST = 32
HANDSHAKE_S = 2.0
"""Seconds that an unknown peer may keep the port busy."""
_ACCEPTS, _CONNECTS = b"dljob chain accepts", b"dljob chain connects"
"""What each end signs beside the challenge, so that neither can be made to answer its own."""

log = logging.getLogger(__package__)


def listening(host: str) -> socket.socket:
    """Return a socket that listens on one address of this node, at a port that the kernel chose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=4)


def accepted(listener: socket.socket, secret: bytes, until: float) -> socket.socket:
    """Return the connection of the peer that knows the secret, and close the port.

    Raises:
        OSError: None came until then (by the monotonic clock).
    """
    with listener:
        while (seconds_left := until - time.monotonic()) > 0:
            listener.settimeout(seconds_left)
            connection, peer = listener.accept()
            try:
                proven = time.monotonic() + HANDSHAKE_S
                _timeout(connection, HANDSHAKE_S)
                challenge = _exactly(connection, CHALLENGE)
                own_challenge = secrets.token_bytes(CHALLENGE)
                _timeout(connection, max(0.01, proven - time.monotonic()))  # 0 would be no limit
                connection.sendall(_signed(secret, _ACCEPTS, challenge) + own_challenge)
                if hmac.compare_digest(_exactly(connection, DIGEST), _signed(secret, _CONNECTS, own_challenge)):
                    _timeout(connection, STALL_S)
                    return connection
                log.warning("A connection from %s does not know the secret of the version: refused", peer[0])
            except OSError as error:
                log.warning("A connection from %s was closed before it proved the secret: %s", peer[0], error)
            connection.close()
    raise TimeoutError("no connection from the node before this one in the chain")


def connected(address: tuple[str, int], secret: bytes) -> socket.socket:
    """Return a connection to the next node of a chain. Raises OSError if it is away or does not know the secret."""
    connection = socket.create_connection(address, timeout=STALL_S)
    try:
        _timeout(connection, STALL_S)
        challenge = secrets.token_bytes(CHALLENGE)
        connection.sendall(challenge)
        answer, peer_challenge = _exactly(connection, DIGEST), _exactly(connection, CHALLENGE)
        if not hmac.compare_digest(answer, _signed(secret, _ACCEPTS, challenge)):
            raise ConnectionRefusedError("the peer does not know the secret of the version")
        connection.sendall(_signed(secret, _CONNECTS, peer_challenge))
    except OSError:
        connection.close()
        raise
    return connection


def _signed(secret: bytes, words: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, words + challenge, "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    # In one call, which the socket's timeout ends: a peer that sends a byte now and then would hold several for long.
    received = connection.recv(size, socket.MSG_WAITALL)
    if len(received) < size:
        raise ConnectionResetError("the peer sent too little")
    return received


def _timeout(connection: socket.socket, seconds: float) -> None:
    """Let the kernel end each call after so many seconds; a timeout of Python's would end MSG_WAITALL at once."""
    connection.settimeout(None)
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
