"""Certificate of the webhook: loaded from a mounted Secret, reloaded when that changes, with its remaining days."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__package__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
EVERY_SECONDS = 60.0
"""Interval, in seconds, of looks at the files; the kubelet brings a changed Secret within about a minute."""
DAY = 86400.0
SOON_DAYS = 14.0
"""Remaining days from which the log warns."""
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""Formats of ASN.1 UTCTime and GeneralizedTime in certificates. Source: RFC 5280, 4.1.2.5."""


class Certificate:
    """The certificate in a folder, and the TLS context that serves it."""

    def __init__(self, folder: Path) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.expires: float | None = None
        """Unix seconds; None: none is loaded."""
        self._folder = folder
        self._pair: tuple[bytes, bytes] | None = None
        self._warned = False

    @property
    def days(self) -> float:
        """Days until it expires, negative after that; 0 without one."""
        return 0.0 if self.expires is None else (self.expires - time.time()) / DAY

    def load(self) -> bool:
        """Load the folder's certificate if it changed; return whether one is served."""
        crt, key = self._folder / CERTIFICATE, self._folder / KEY
        try:
            pair = (crt.read_bytes(), key.read_bytes())
            if pair != self._pair:
                self.context.load_cert_chain(crt, key)
                self.expires, self._pair, self._warned = expires(pair[0].decode()), pair, False
                if self.days > 0:
                    log.info("the webhook's certificate holds for %.0f days", self.days)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            log.error("the webhook's certificate in %s cannot be used: %s", self._folder, error)
        # Once for each certificate: the look repeats every minute.
        if self.expires is not None and self.days < SOON_DAYS and not self._warned:
            self._warned = True
            log.warning("the webhook's certificate %s: %s", _describe_days(self.days), RENEW)
        return self.expires is not None

    async def follow(self) -> None:
        """Load renewed certificates, for ever; new connections use them."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self.load()


RENEW = "helm upgrade makes a new one; whoever made webhook.existingSecret renews that"


def _describe_days(days: float) -> str:
    if days < 0:
        return f"expired {-days:.1f} days ago, so the API server admits DLJobs without asking"
    return f"expires in {days:.1f} days"


def expires(pem: str) -> float:
    """Return the expiry of the first certificate in a PEM file, in unix seconds.

    Raises:
        ValueError: it is no certificate.
    """
    end = "-----END CERTIFICATE-----"
    # Python's ssl module has no public parser of certificates.
    der = ssl.PEM_cert_to_DER_cert(pem[: pem.find(end) + len(end)])
    try:
        _, certificate = next(_parts(der))
        _, signed = next(_parts(certificate))
        fields = [part for part in _parts(signed) if part[0] != 0xA0]  # [0] is the version
        _, (kind, text) = _parts(fields[3][1])  # serial number, algorithm, issuer, validity
        return datetime.strptime(text.decode(), _TIMES[kind]).replace(tzinfo=UTC).timestamp()
    except (StopIteration, IndexError, KeyError, RuntimeError) as error:
        raise ValueError(f"no X.509 certificate: {error!r}") from None


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, content) of consecutive DER values."""
    at = 0
    while at < len(der):
        kind, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # the long form: the low bits count the bytes of the length
            wide = size & 0x7F
            size, at = int.from_bytes(der[at : at + wide]), at + wide
        yield kind, der[at : at + size]
        at += size
