"""A parameter server or a worker: it serves what the chief asks for, until the job ends."""

from __future__ import annotations

import tensorflow as tf


def main() -> None:
    """Serve on the port that TF_CONFIG names."""
    me = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(me.cluster_spec(), job_name=me.task_type, task_index=me.task_id, protocol="grpc")
    server.join()


if __name__ == "__main__":
    main()
