"""A code is good once; a cookie is good for its command; all else is not."""

from __future__ import annotations

import pytest

from dljob.report.live.access import CODES, PageAccess


def cookie(header: str | None) -> str:
    assert header
    return header.partition(";")[0]


def test_a_code_is_changed_for_a_cookie_once() -> None:
    access = PageAccess(80)
    code = access.code()
    header = access.redeem(code)
    assert header
    assert header.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert access.admits(f"a/b=1; odd; {cookie(header)}")
    assert access.redeem(code) is None


def test_two_browsers_have_two_cookies() -> None:
    access = PageAccess(80)
    one, two = (cookie(access.redeem(access.code())) for _ in range(2))
    assert one != two
    assert access.admits(one)
    assert access.admits(two)


def test_old_unused_codes_are_void_when_many_are_made() -> None:
    access = PageAccess(80)
    codes = [access.code() for _ in range(CODES + 1)]
    assert access.redeem(codes[0]) is None
    assert access.redeem(codes[1])
    assert access.redeem(codes[-1])


@pytest.mark.parametrize("header", ["", "dljob-80=", "dljob-80=x", "dljob-80", "\x00=;=", "dljob-80=\udcff", 'a="\\'])
def test_other_cookies_are_not_admitted(header: str) -> None:
    access = PageAccess(80)
    access.redeem(access.code())
    assert not access.admits(header)


def test_a_cookie_of_another_command_is_not_admitted() -> None:
    one, two = PageAccess(80), PageAccess(81)
    given = cookie(one.redeem(one.code()))
    assert not two.admits(given)
    assert not two.admits(given.replace("dljob-80", "dljob-81"))
    assert one.redeem("ü") is None
