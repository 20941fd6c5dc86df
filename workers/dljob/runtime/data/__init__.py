"""Data sets shared by ranks: `shards` leases parts of one to ranks, `batches` cuts one into global batches."""
