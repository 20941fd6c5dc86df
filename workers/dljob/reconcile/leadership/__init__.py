"""Which operator acts: `lease` among replicas, `releases` among installations."""
