"""Shards that overlap: a route has each layer once, also after one of its nodes is replaced by several."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.lab.site import Site
from tests.lab.tap import Tap
from tests.nodes.models import make_tiny_llama
from tests.system.survivors import assert_lost, assert_same, mesh_of

NUM_LAYERS = 32


def layers(hops: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(hop["start_layer"], hop["end_layer"]) for hop in hops]


def test_overlapping_shards_have_each_layer_worked_once_before_and_after_a_node_dies(
    tapped: tuple[Site, Tap],
    tmp_path: Path,
) -> None:
    """N8. The tail is lost; what it held of the route, two others have together."""
    model = make_tiny_llama(tmp_path / "model", num_layers=NUM_LAYERS, width=32, intermediate=48, head_dim=8)
    cuts = ("0:16", "8:24", "16:32", "24:32")
    with mesh_of(*tapped, model, tmp_path / "names" / "overlapping", "tunnel", copies=1, cuts=cuts) as mesh:
        expected = mesh.ask()
        assert layers(expected.hops) == [(0, 16), (16, 32)]
        trigger = mesh.steps.at(
            lambda asked: (asked.step, asked.start_layer) == (8, 16),
            lambda asked: mesh.send(asked.peer_id, signal.SIGKILL),
        )
        answer = mesh.ask()
        lost = trigger.wait()
        assert_lost(lost, mesh.steps.seen(lost.session), "last")
        assert_same(answer, expected)
        assert layers(answer.hops) == [(0, 16), (16, 24), (24, 32)]
        mesh.wait_until_free()
