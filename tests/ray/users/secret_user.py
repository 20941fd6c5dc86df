"""User code that has a secret from its container's environment, uses it, and says that it does."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from prime_user import until_told

from dljob import current_worker


def holds() -> dict[str, str]:
    """Runs until it is told; the digest of what it holds is in a file meanwhile."""
    me = current_worker()
    digest = hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()
    (Path(me.job_dir) / f"holds-{me.role}-{me.rank}-{me.incarnation}").write_text(digest)
    until_told()
    return {"digest": digest}


if __name__ == "__main__":
    holds()
