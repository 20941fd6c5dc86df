"""Ray's token in one process: that of the Ray which is started now, not of one before it."""

from __future__ import annotations

from dljob import ray_private


def test_a_second_start_in_one_process_has_a_token_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    tokens = list[str | None]()
    for name in ("first", "second"):
        (tmp_path / name).write_text(name * 8)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / name))
        ray_private.read_config_again()
        tokens.append(ray_private.auth_token())
    monkeypatch.undo()
    ray_private.read_config_again()
    assert tokens == ["first" * 8, "second" * 8]
