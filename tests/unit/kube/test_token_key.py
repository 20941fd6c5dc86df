"""Tokens from one key."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from dljob.errors import UsageError
from dljob.kube.token_key import TokenKey


def test_a_token_depends_on_key_uid_and_cluster() -> None:
    key = TokenKey(b"k" * 32)
    assert key.token("u", "c") == hmac.new(b"k" * 32, b"u/c", hashlib.sha256).hexdigest()
    keys = [TokenKey(b"l" * 32), TokenKey.generate()]
    others = [key.token("u", "d"), key.token("v", "c"), *(other.token("u", "c") for other in keys)]
    assert key.token("u", "c") not in others
    assert "kkk" not in repr(key)


def test_a_key_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32 + "\n")
    assert TokenKey.from_file(file).token("u", "c") == TokenKey(b"k" * 32).token("u", "c")


def test_a_file_without_a_key_of_enough_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the token key"):
        TokenKey.from_file(tmp_path / "none")
    (tmp_path / "short").write_text(" abc \n")
    with pytest.raises(UsageError, match="has 3 bytes, at least 32 are needed"):
        TokenKey.from_file(tmp_path / "short")
