"""TensorBoard files, read by a reader of the tests' own: what TensorBoard shows after a way back."""

from __future__ import annotations

from pathlib import Path

import event_files
import pytest
from event_files import curves

from dljob.runtime.sinks.sink import SinkRun
from dljob.runtime.sinks.tensorboard_sink import TensorBoardSink, masked_crc


def sink_in(folder: Path, *, resumed: bool = False) -> TensorBoardSink:
    return TensorBoardSink(SinkRun("j-01234567", "j", "0123456789", 1, folder / "tensorboard", resumed))


def test_a_way_back_voids_the_later_steps(tmp_path):
    sink = sink_in(tmp_path)
    for step in (1, 2, 3):
        sink.write(step, {"loss": step * 0.5, "train/lr": 1.0}, 1e9)
    sink.rewind(2)
    sink.write(2, {"loss": 7.0}, 1e9)
    sink.close()
    sink.close()
    assert curves(tmp_path / "tensorboard") == {"loss": [(1, 0.5), (2, 7.0)], "train/lr": [(1, 1.0)]}


def test_a_later_process_voids_what_the_earlier_one_wrote_beyond_its_first_step(tmp_path):
    first = sink_in(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"loss": 0.5}, 1e9)
    first.close()
    later = sink_in(tmp_path, resumed=True)
    later.write(3, {"loss": 0.25}, 1e9)
    later.close()
    assert curves(tmp_path / "tensorboard") == {"loss": [(1, 0.5), (2, 0.5), (3, 0.25)]}


def test_a_run_without_rows_leaves_no_file(tmp_path):
    sink_in(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "shown"), [(1e300, float("inf")), (-1e300, float("-inf")), (0.1, pytest.approx(0.1))]
)
def test_a_value_beyond_single_precision_is_infinite(tmp_path, value, shown):
    sink = sink_in(tmp_path)
    sink.write(2**40, {"loss": value}, 1e9)
    sink.close()
    assert curves(tmp_path / "tensorboard") == {"loss": [(2**40, shown)]}


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256))])
def test_both_sides_agree_on_the_checksum(data):
    assert masked_crc(data) == event_files.masked_crc(data)


def test_the_checksum_is_the_castagnoli_one():
    crc = (masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (crc >> 17 | crc << 15) & 0xFFFFFFFF == 0xE3069283
