"""Models in GGUF files, a layer at a time. `folder.py` is where to begin."""
