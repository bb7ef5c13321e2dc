"""What a user is told of a node that was lost: one sentence of which layers, which node and why, and what to do. Pure.

Heads and the site say it with the cause on each path: that is for the log and for operators.
"""

from __future__ import annotations

import re

PIPELINE_ERROR = "pipeline error: "
AGAIN = "Ask again in a moment; if it stays so, tell who runs this site."

_LOSS = re.compile(
    rf"(?:{PIPELINE_ERROR}|the head of the route, )(layers? [\d–]+) on ((?:node|peer) [^:;]+?)(?:, is lost)?: (.*?)"
    r"(?:; no other node (?:could take over|can go on): (.*))?",
    re.DOTALL,
)
_MISSING = re.compile(r"layers? \d[\d–, and]* ha(?:s|ve) no node (?:online|that takes sessions)")
_GONE = re.compile(r"not_found|peer_gone|has gone|\bleft\b|draining")
_SILENT = re.compile(r"silent|no answer|said nothing|timed? ?out")
_ON_A_PATH = re.compile(r"(?:tunnel|relay|direct): ")


def in_a_sentence(message: str, code: str) -> str | None:
    """None where it says something else. `code`: as the user is told it."""
    found = _LOSS.fullmatch(message)
    if found:
        layers, node, cause, why = found.groups()
        name = node if node.startswith("node ") else "a node"
        return f"The chat lost {layers}: {name} {_what(cause, code)}{_instead(layers, why)}. {AGAIN}"
    if message.startswith(PIPELINE_ERROR):
        return f"A node on the chat's way failed. {AGAIN}"
    return None


def _what(cause: str, code: str) -> str:
    if code == "busy":
        return "has no room for it now"
    if _GONE.search(cause):
        return "isn't connected any more"
    if _SILENT.search(cause):
        return "doesn't answer"
    return "can't be reached" if _ON_A_PATH.match(cause) else "failed"


def _instead(layers: str, why: str | None) -> str:
    """Without a rerouter nobody was asked for another."""
    if why is None:
        return ""
    missing = _MISSING.search(why)
    if missing is None:
        return ", and no other node could take over"
    if missing[0].startswith(f"{layers} ha") and missing[0].endswith("online"):
        return ", and no other node online has them"
    return f", and no other node could take over: {missing[0]}"
