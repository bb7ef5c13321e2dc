"""The executor that runs transformers' own modules: every family, and the reference. `shard.py` is where to begin."""
