"""The lean executor: Llama-shaped blocks with as few operations as they need. `shard.py` is where to begin."""
