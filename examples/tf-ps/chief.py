"""The chief: it leases ranges of samples, hands them to the workers, and saves what the parameter servers hold.

Samples are (key, x); an embedding of the key, on the parameter servers, learns y = slope[key] * x.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from dljob import checkpoint, current_worker, progress, shards

SAMPLES, RANGE, EPOCHS, KEYS = 4096, 64, 4, 16
SAVE_EVERY = 4
"""Rounds between two checkpoints."""


@tf.function
def train(table: tf.Variable, seen: tf.Variable, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Learn from one range of samples, on a worker, which reads them by tf.data."""
    loss = tf.constant(0.0)
    for place in tf.data.Dataset.range(low, high).batch(16):
        number = tf.cast(place, tf.float32)
        key = tf.cast(place % KEYS, tf.int32)
        x = tf.math.sin(number)
        error = tf.gather(table, key) * x - tf.cast(key, tf.float32) * x
        table.scatter_sub(tf.IndexedSlices(0.2 * error * x, key))
        loss += tf.reduce_mean(tf.square(error))
    seen.scatter_add(tf.IndexedSlices([1], [tf.cast(low // RANGE, tf.int32)]))
    return loss


def main() -> None:
    """Train until all ranges are done; go on from the last checkpoint."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    in_flight = 2 * cluster.cluster_spec().num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.zeros([KEYS]), name="table")
        seen = tf.Variable(tf.zeros([SAMPLES // RANGE], tf.int32), name="seen")
    state = tf.train.Checkpoint(table=table, seen=seen)
    folder = Path(current_worker().job_dir, "tf")
    step, saved = checkpoint.load() or (0, {"ranges": 0})
    done = saved["ranges"]
    if "tf" in saved:
        state.read(saved["tf"]).assert_consumed()
        print(f"goes on after step {step} from {saved['tf']}", flush=True)
    ranges: Any = iter(shards("train", SAMPLES, shard=RANGE, epochs=EPOCHS, wait=False))
    while taken := [one for _, one in zip(range(in_flight), ranges, strict=False)]:
        asked = [
            coordinator.schedule(train, args=(table, seen, one.start % SAMPLES, one.start % SAMPLES + len(one)))
            for one in taken
        ]
        losses = [float(one) for one in coordinator.fetch(asked)]
        for one in taken:
            one.done()  # its result is back
        step, done = step + 1, done + len(taken)
        # A worker that was killed may have applied a range whose result it did not send: it is applied again.
        progress(step, loss=sum(losses) / len(losses), twice=int(tf.reduce_sum(seen)) - done)
        print(f"step {step}: loss {sum(losses) / len(losses):.6f}", flush=True)
        if step % SAVE_EVERY == 0:
            save(state, folder, step, done)
    save(state, folder, step, done)
    least, most = int(tf.reduce_min(seen)), int(tf.reduce_max(seen))
    print(f"each range was applied {least} to {most} times in {EPOCHS} epochs", flush=True)


def save(state: tf.train.Checkpoint, folder: Path, step: int, done: int) -> None:
    """Write the variables, then have dljob note the file together with what is done of the data."""
    path = state.write(str(folder / f"{step}" / "variables"))
    checkpoint.save(step, {"tf": path, "ranges": done})
    for old in folder.iterdir():
        if int(old.name) < step - 2 * SAVE_EVERY:
            shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # TensorFlow's threads, which wait for servers, would hold the end of the interpreter
