"""Tokens of RayClusters, derived from one key, so that the operator knows them without reading a Secret."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from dljob.errors import UsageError

SHORTEST = 32
"""Fewest bytes of a key, as many as a token has: a shorter one is easier to guess than the token (RFC 2104, 3)."""


class TokenKey:
    """The operator's key; its `repr` does not show it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, uid: str, cluster: str) -> str:
        """Return a RayCluster's token: HMAC-SHA256 of `<uid of the DLJob>/<RayCluster>`, 64 hex digits."""
        # The slash cannot occur in either part, so no two clusters share a text.
        return hmac.new(self._key, f"{uid}/{cluster}".encode(), hashlib.sha256).hexdigest()

    @property
    def id(self) -> str:
        """Return a text that differs for each key and does not tell it: operators compare it in each other's Leases."""
        return hmac.new(self._key, b"id", hashlib.sha256).hexdigest()[:16]  # no token: their texts have a slash

    @classmethod
    def from_text(cls, text: str, source: str) -> TokenKey:
        """Make a key of the text in a file or variable, without surrounding white space.

        Raises:
            UsageError: it is too short.
        """
        # Files written by an editor or `echo` end with a newline, which is no part of the key.
        key = text.strip().encode()
        if len(key) < SHORTEST:
            raise UsageError(
                f"the token key in {source} has {len(key)} bytes, at least {SHORTEST} are needed",
                hint="make one: openssl rand -hex 32",
            )
        return cls(key)

    @classmethod
    def from_file(cls, path: Path) -> TokenKey:
        """Read the key from a file, such as a mounted Secret.

        Raises:
            UsageError: the file cannot be read, or its key is too short.
        """
        try:
            return cls.from_text(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            hint = "give --token-key-file a file that can be read"
            raise UsageError(f"cannot read the token key: {error}", hint=hint) from error

    @classmethod
    def generate(cls) -> TokenKey:
        """Make a random key. Tokens derived from it are lost with this process."""
        return cls(secrets.token_bytes(32))
