"""Which operator acts: `lease` decides among replicas, `releases` among installations."""
