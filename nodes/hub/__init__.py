"""Models of a hub, only the bytes that a shard needs. `folder.py` is where to begin."""
