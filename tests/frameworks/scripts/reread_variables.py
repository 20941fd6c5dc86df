"""Reads variables with another number of parameter servers than wrote them; all servers run in this process.

reread_variables.py SERVERS PATH          # write a checkpoint
reread_variables.py SERVERS PATH read     # read it, and say what came of it
"""

from __future__ import annotations

import os
import socket
import sys

import tensorflow as tf


def address() -> str:
    """Return an address at which nobody listens yet."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def main() -> None:
    """Write or read three kinds of variables: split by a partitioner, whole, and one made for each server."""
    count, path, reads = int(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
    cluster = tf.train.ClusterSpec({
        "chief": [address()], "worker": [address()], "ps": [address() for _ in range(count)]
    })  # fmt: skip
    tasks = [("worker", 0), *(("ps", number) for number in range(count))]
    servers = [tf.distribute.Server(cluster, job_name=task, task_index=number) for task, number in tasks]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, rpc_layer="grpc", task_type="chief", task_id=0
    )
    split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(count)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.zeros([6]) if reads else tf.range(6, dtype=tf.float32))
        whole = tf.Variable(0.0 if reads else 7.0)
        each = [tf.Variable(1.0) for _ in range(count)]
    placed = tf.train.Checkpoint(table=table, whole=whole)
    owned = tf.train.Checkpoint(each=each)
    if not reads:
        placed.write(path)
        owned.write(f"{path}-each")
    else:
        placed.read(path).assert_consumed()
        print("placed", tf.convert_to_tensor(table).numpy().tolist(), float(whole))
        try:
            owned.read(f"{path}-each").assert_consumed()
        except AssertionError:
            print("refused")
    del coordinator, servers
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's threads, which wait for servers, would hold the end of the interpreter


if __name__ == "__main__":
    main()
