"""What ranks ask PrimeMaster for: checkpoints to restore, shards of data to read, and consistent cuts of the job."""
