"""Who may read a live page: a browser that showed a code, once, and has a cookie since. No I/O."""

from __future__ import annotations

import hmac
import secrets

CODES = 8
"""Codes that are good at a time; a new one beyond them voids the oldest."""


class PageAccess:
    """Codes and cookies of one command. Codes are in links, so each is good once; cookies are seen by no script."""

    def __init__(self, port: int) -> None:
        # Browsers share cookies among all ports of a host.
        self.name = f"dljob-{port}"
        self._codes: list[str] = []
        self._cookies: list[str] = []

    def code(self) -> str:
        """Return a new code."""
        self._codes = [*self._codes[1 - CODES :], secrets.token_urlsafe(32)]
        return self._codes[-1]

    def redeem(self, code: str) -> str | None:
        """Return a Set-Cookie header for a code, which is void then; None for any other text."""
        known_code = _among(code, self._codes)
        if known_code is None:
            return None
        self._codes.remove(known_code)
        self._cookies.append(secrets.token_urlsafe(32))
        return f"{self.name}={self._cookies[-1]}; Path=/; HttpOnly; SameSite=Strict"

    def admits(self, cookies: str) -> bool:
        """Whether a Cookie header has a cookie that this command gave."""
        # By hand: other servers of this host may have given cookies that a strict parser refuses.
        pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
        return any(name == self.name and _among(value, self._cookies) is not None for name, _, value in pairs)


def _among(text: str, known: list[str]) -> str | None:
    """Return the known text that equals this one, all compared in constant time."""
    encoded, match = text.encode(errors="replace"), None
    for known_text in known:
        if hmac.compare_digest(encoded, known_text.encode()):
            match = known_text
    return match
