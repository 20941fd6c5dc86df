"""Ranks share a data set: `shards` leases its parts to ranks, `batches` cuts them into global batches."""
