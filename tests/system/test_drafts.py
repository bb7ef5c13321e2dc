"""Drafts through a real route: the same ids in fewer steps, and the trace tells how it went."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.site import Answer, Site

FEW = {str(token_id): 60 for token_id in (70, 80, 90)}  # with so few words any text repeats itself
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def answers(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    """Greedy and sampled, over two nodes that nobody can reach, by what their heads were told of drafts."""
    found = {}
    for drafts in ("off", "8"):
        folder = tmp_path_factory.mktemp("drafts") / f"tiny-drafts-{drafts}"
        folder.symlink_to(tiny, target_is_directory=True)
        site.model(folder.name, wire_dtype="float32")
        with site.mesh(folder, ["0:3", "3:7"], "--dtype", "float32", "--drafts", drafts):
            asked = {"max_tokens": NUM_TOKENS, "logit_bias": FEW}
            warm = {"temperature": 0.8, "top_p": 0.95, "seed": 5}
            found[drafts] = [site.chat(folder.name, "Hello", **asked, **more) for more in ({}, warm)]
    return found


@pytest.mark.parametrize("number", [0, 1], ids=["greedy", "sampled"])
def test_the_ids_are_those_without_drafts(answers: dict[str, list[Answer]], number: int) -> None:
    without, drafted = answers["off"][number], answers["8"][number]
    assert drafted.ids == without.ids
    assert drafted.text == without.text


def test_the_hop_table_tells_how_many_were_right(answers: dict[str, list[Answer]]) -> None:
    assert [hop["drafted"] for hop in answers["off"][0].hops] == [0, 0]
    head, tail = answers["8"][0].hops
    assert (head["drafted"], head["accepted"]) == (0, 0)
    assert tail["drafted"] >= tail["accepted"] > 0
    assert tail["steps"] < answers["off"][0].hops[1]["steps"]
