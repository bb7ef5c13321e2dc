"""A small site for tests of whole nodes: the tracker and the relay, both real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodes.options import NodeOptions
from tests.nodes.meshes import Signer
from tests.nodes.relays import MiniRelay, key_of
from tests.nodes.trackers import MiniTracker, registered, standing


class Site:
    """A tracker that enrols nodes by their name, and a relay."""

    def __init__(self, relay: MiniRelay) -> None:
        self.relay, self.signer = relay, Signer()
        self.is_approved = True
        self.says: dict[str, Any] = {}  # with every answer
        self.chosen = (0, 3)  # for a node that leaves its layers to it
        self.tracker = MiniTracker(self._answer)

    def peer_id(self, number: int) -> str:
        return f"{number:032x}"

    def _answer(self, verb: str) -> Any:
        changes = {
            "status": "approved" if self.is_approved else "pending",
            "ticket_keys": self.signer.public_keys(),
        } | self.says
        if verb != "register":
            return standing(**changes)
        message = self.tracker.asked[-1][2]
        peer_id = self.peer_id(int(message["name"]))
        start, end = self.chosen if message.get("layers") == "auto" else (message["start_layer"], message["end_layer"])
        return registered(
            **changes,
            node_key=key_of(peer_id),
            peer_id=peer_id,
            start_layer=start,
            end_layer=end,
            relay_url=self.relay.ws_url if message["relay"] else None,
            wire_versions=list(self.relay.wire_versions),
        )


def node_options(model: Path, **changes: Any) -> NodeOptions:
    """The command line of a node that only reaches out, with `changes`."""
    usual: dict[str, Any] = {
        "tracker_url": "http://127.0.0.1:1",
        "join_token": "join.token",
        "model": str(model),
        "start_layer": 0,
        "end_layer": 3,
        "listen": None,
        "uses_relay": True,
        "name": "1",
        "state_folder": Path("unused"),
        "num_threads": 1,
        "dtype": "float32",
        "ca_file": "",
    }
    return NodeOptions(**usual | changes)
