"""Which relay the nodes of a model connect to, so that the hops of a route stay in one process. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def relay_of(model_name: str, urls: Sequence[str]) -> str:
    """The same for all processes and after restarts; one URL more or less moves only the models it gains or had.

    Rendezvous hashing: every URL draws a number for the model, the highest has it.
    """
    return max(urls, key=lambda url: hashlib.sha256(f"{url} {model_name}".encode()).digest())
