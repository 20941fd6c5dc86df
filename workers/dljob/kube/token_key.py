"""The tokens of RayClusters: derived from one key, so that the operator needs to read no Secret to know them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from dljob.errors import UsageError

SHORTEST = 32
"""Bytes of a key, as many as a token has: shorter ones are easier to guess than the token (RFC 2104, section 3)."""


class TokenKey:
    """The operator's key. Its `repr` does not tell it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, uid: str, cluster: str) -> str:
        """The token of a RayCluster: HMAC-SHA256 of `<uid of the DLJob>/<RayCluster>`, 64 hex digits."""
        return hmac.new(self._key, f"{uid}/{cluster}".encode(), hashlib.sha256).hexdigest()

    @classmethod
    def from_text(cls, text: str, where: str) -> TokenKey:
        """A key as it stands in a file or variable, white space around it apart.

        Raises:
            UsageError: It is too short to be one.
        """
        key = text.strip().encode()
        if len(key) < SHORTEST:
            raise UsageError(
                f"the token key in {where} has {len(key)} bytes, at least {SHORTEST} are needed",
                hint="make one: openssl rand -hex 32",
            )
        return cls(key)

    @classmethod
    def from_file(cls, path: Path) -> TokenKey:
        """The key in a file, such as a mounted Secret.

        Raises:
            UsageError: The file cannot be read, or what is in it is too short.
        """
        try:
            return cls.from_text(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            hint = "give --token-key-file a file that can be read"
            raise UsageError(f"cannot read the token key: {error}", hint=hint) from error

    @classmethod
    def generate(cls) -> TokenKey:
        """A new one, which nobody else knows: tokens of before are lost with the process that had their key."""
        return cls(secrets.token_bytes(32))
