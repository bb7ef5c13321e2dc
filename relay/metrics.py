"""What happened here, counted; one word for each outcome, the same in code, logs and figures."""

from __future__ import annotations

from collections import Counter

outcomes: Counter[str] = Counter()  # how requests ended: "answered", "cancelled", or the relay's error code
drops: Counter[str] = Counter()  # messages that were thrown away: "unmatched" answers, "malformed" ones
sockets: Counter[str] = Counter()  # "registered", "replaced", "refused", "overflowed"
