"""Journal lines: what comes back, what is forgiven, and what is refused with its offset."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.errors import JournalError
from dljob.telemetry import reasons, records
from dljob.telemetry.records import Header, encode_header, encode_line, scan

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
some_records = st.lists(st.fixed_dictionaries({"k": st.just("event"), "e": json_values}), max_size=6)


def segment(items, header=None):
    header = header or Header(1)
    return encode_header(header) + b"".join(encode_line(i + 1, item) for i, item in enumerate(items))


SAMPLE = segment([{"k": "event", "n": i} for i in range(4)], Header(3, ("segment-2", 4096)))


@given(some_records)
def test_written_records_are_read_back(items):
    data = segment(items)
    got = scan(data)
    assert got == records.Scan(Header(1), tuple(items), len(data), torn_tail=False)


def test_the_header_names_the_predecessor_and_where_it_was_fenced():
    assert scan(SAMPLE).header == Header(3, ("segment-2", 4096))


@given(st.integers(0, len(SAMPLE)))
def test_a_write_that_was_cut_short_is_forgiven_and_the_rest_is_kept(size):
    got = scan(SAMPLE[:size])
    whole = SAMPLE[: got.valid_bytes]
    assert whole == SAMPLE[: SAMPLE.rfind(b"\n", 0, size) + 1]
    assert got.torn_tail is (got.valid_bytes < size)
    assert (got.header is None) is (got.valid_bytes == 0)
    assert len(got.records) == max(whole.count(b"\n") - 1, 0)


@given(st.integers(0, len(SAMPLE) - 2), st.integers(0, 7))
def test_a_flipped_bit_is_refused_with_the_offset_of_its_line(position, bit):
    damaged = bytearray(SAMPLE)
    damaged[position] ^= 1 << bit
    with pytest.raises(JournalError) as caught:
        scan(bytes(damaged), name="segment-3")
    assert caught.value.offset == SAMPLE.rfind(b"\n", 0, position) + 1
    assert f"segment-3: damaged at byte {caught.value.offset}: the checksum of line" in str(caught.value)


def test_a_missing_line_is_refused():
    lines = SAMPLE.splitlines(keepends=True)
    with pytest.raises(JournalError, match="line 2 is missing, line 3 follows") as caught:
        scan(b"".join(lines[:2] + lines[3:]))
    assert caught.value.offset == len(lines[0] + lines[1])


def test_records_a_fenced_predecessor_still_wrote_do_not_count():
    lines = SAMPLE.splitlines(keepends=True)
    limit = len(lines[0] + lines[1])
    got = scan(SAMPLE[:limit] + b"garbage\n", limit=limit)
    assert (len(got.records), got.valid_bytes, got.torn_tail) == (1, limit, False)


def test_a_segment_that_is_shorter_than_its_successor_says_is_refused():
    with pytest.raises(JournalError, match="its successor counts on 99999 bytes") as caught:
        scan(SAMPLE, limit=99999)
    assert caught.value.offset == len(SAMPLE)


@pytest.mark.parametrize(("version", "writer"), [(4, "a later dljob"), (2, "a dljob from before 0.1.0")])
def test_another_version_is_refused_with_both_named(version, writer):
    data = encode_header(Header(1, version=version)) + b"what another version writes\n"
    with pytest.raises(JournalError, match=f"{writer} wrote it, in version {version} .* this one reads version 3"):
        scan(data)


def test_a_segment_without_a_header_is_refused():
    with pytest.raises(JournalError, match="does not begin with a header"):
        scan(encode_line(0, {"k": "event"}))


def test_an_empty_segment_holds_nothing():
    assert scan(b"") == records.Scan(None, (), 0, torn_tail=False)


def test_reasons_are_camel_case_unique_and_each_is_explained():
    lines = Path(reasons.__file__).read_text().splitlines()
    defined = [line for line in lines if re.match(r"[A-Z_]+ = ", line)]
    values = [line.split('"')[1] for line in defined]
    assert len(values) == len(set(values)) > 20
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", value) for value in values)
    assert all("  # " in line for line in defined)
