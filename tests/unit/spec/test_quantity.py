"""Amounts are exact: text in, ten-thousandths out."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.plan import model as plan_model
from dljob.spec.quantity import GRAIN, parse_cpu, parse_custom, parse_devices, parse_memory, show, show_memory


def test_quantities_have_the_grain_of_the_plan() -> None:
    assert GRAIN == plan_model.GRAIN


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", 20_000), ("0.5", 5_000), ("500m", 5_000), ("1m", 10), ("0", 0), ("0.001", 10), ("96", 960_000)],
)
def test_cpu_quantities_are_parsed(text: str, amount: int) -> None:
    assert parse_cpu(text) == amount


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8Gi", 8 * 2**30),
        ("1Ti", 2**40),
        ("512Mi", 2**29),
        ("2k", 2_000),
        ("1.5Gi", 3 * 2**29),
        ("7", 7),
        ("1.1Ki", 1127),
    ],
)
def test_memory_is_parsed_to_bytes_and_rounded_up(text: str, size: int) -> None:
    assert parse_memory(text) == size * GRAIN


def test_memory_over_64_bits_is_refused() -> None:
    assert parse_memory("8191Pi") == 8191 * 2**50 * GRAIN
    assert parse_memory(str(2**63 - 1)) == (2**63 - 1) * GRAIN
    with pytest.raises(ValueError, match="64 bits"):
        parse_memory("8192Pi")


@pytest.mark.parametrize(("text", "amount"), [("0.4", 4_000), ("0.0001", 1), ("8", 80_000), ("007", 70_000)])
def test_device_counts_and_shares_are_parsed(text: str, amount: int) -> None:
    assert parse_devices(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0001", "8Gi", "0,5", "1 ", "½", "1e3", "1.", ".5", "m"])
def test_cpu_refuses_and_says_what_it_takes(text: str) -> None:
    with pytest.raises(ValueError, match=r'write "2", "0\.5" or "500m"'):
        parse_cpu(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("500m", 'write "500Mi"'),
        ("8GB", "Ki, Mi, Ti, Pi, k, M, G, T, P, or plain bytes"),
        ("8gi", "8Gi"),
        ("-1", "8Gi"),
        ("1e9", "8Gi"),
        ("9000Pi", "more memory than 64 bits can hold"),
    ],
)
def test_memory_refuses_and_says_what_it_takes(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_memory(text)


@pytest.mark.parametrize("text", ["1.5", "0.40001", "-1", "1/2", "50%", ""])
def test_devices_refuses_what_is_neither_whole_nor_a_share(text: str) -> None:
    with pytest.raises(ValueError, match=r'a share below one such as "0\.4"'):
        parse_devices(text)


@pytest.mark.parametrize("text", ["0", "0.0", "0.0000"])
def test_zero_devices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="count must be above 0"):
        parse_devices(text)


def test_custom_resource_amounts_are_parsed() -> None:
    assert (parse_custom("3"), parse_custom("0.25"), parse_custom("500m")) == (30_000, 2_500, 5_000)
    with pytest.raises(ValueError, match="not an amount of a resource"):
        parse_custom("1Gi")


@given(st.integers(1, 9_999))
def test_four_digits_of_a_share_are_exact(tenthousandths: int) -> None:
    text = f"0.{tenthousandths:04d}"
    assert parse_devices(text) == tenthousandths
    assert Fraction(show(tenthousandths)) == Fraction(text)


@given(st.integers(0, 2**62))
def test_a_shown_quantity_reads_back(whole: int) -> None:
    assert parse_memory(show_memory(whole * GRAIN)) == whole * GRAIN
    assert Fraction(show(whole)) * GRAIN == whole
