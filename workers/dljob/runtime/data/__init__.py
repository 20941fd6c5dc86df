"""Data that ranks share: `shards` leases parts of a data set, `source` partitions of a stream; and global `batches`.

In reading order: `leases` (what a process asks PrimeMaster), `shards`, `batches`, `source_reader` (what a package
implements), `source_cursor` (pure), `source`, `file_reader`, `cut_folder`.
"""
