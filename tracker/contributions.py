"""What each node did for a session, in tokens times layers, added to the day's row of the node. Synchronous.

A token that went through a layer of a node counts once there, however often it was sent: a node that comes anew has
worked the tokens that it is given then, and one that had them and is given them again gains nothing. Heads tell how far
each hop has come, those included that were lost on the way. Where a head is lost itself and tells nothing, its route is
credited with what the client had by then, which can't have come about otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum
from django.db.models.query import QuerySet

from tracker import tallies
from tracker.answers import Answer
from tracker.models import Contribution, Failover, Node, SessionHop

SUMS = {name: Sum(name) for name in ("sessions", "tokens", "token_layers")}


@dataclass(frozen=True, slots=True)
class Work:
    tokens: int
    token_layers: int


def work_of(stretches: Iterable[tuple[int, int, int]]) -> Work:
    """Of one node in one session, from (start_layer, end_layer, tokens) of each time that it was on the route."""
    reached: defaultdict[int, int] = defaultdict(int)  # by layer
    for start_layer, end_layer, tokens in stretches:
        for layer in range(start_layer, end_layer):
            reached[layer] = max(reached[layer], tokens)
    return Work(max(reached.values(), default=0), sum(reached.values()))


def had_by_client(answer: Answer, positions: Mapping[int, int | None], last_epoch: int) -> dict[int, int]:
    """By epoch that has brought the client tokens: how many of prompt and answer had been through its whole route.

    positions: by the epoch that it led to, where the session was at each failover. The last token of an epoch hasn't
    been through the route: nothing came after it there.
    """
    num_prompt, had = len(answer.prompt_ids), {}
    for epoch in range(last_epoch + 1) if answer.ids else ():
        end = num_prompt + len(answer.ids)
        if epoch < last_epoch:
            end = min(positions.get(epoch + 1) or 0, end)
        if end > max(num_prompt, positions.get(epoch) or 0):
            had[epoch] = end - 1
    return had


def count(hops: Sequence[SessionHop], answer: Answer, now: datetime) -> None:
    """Adds what the session's nodes did to their rows of today, once, when it has ended; in a transaction. `hops`: of
    all its routes, as its head has told of them."""
    _fill_in(hops, answer)
    stretches: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    nodes: dict[str, Node | None] = {}
    for hop in hops:
        name = hop.node.name if hop.node else hop.node_name
        nodes[name] = hop.node
        stretches[name].append((hop.start_layer, hop.end_layer, hop.tokens or 0))
    for name in sorted(nodes):  # in one order everywhere: no two sessions wait for each other's rows
        work = work_of(stretches[name])
        if work.tokens:
            _add(name, nodes[name], answer.completion.model, work, now)


def totals(contributions: QuerySet[Contribution], *by: str) -> list[dict[str, object]]:
    """Sums of these rows, grouped; who did most comes first."""
    return list(contributions.order_by().values(*by).annotate(**SUMS).order_by("-token_layers", *by))


def _fill_in(hops: Sequence[SessionHop], answer: Answer) -> None:
    """What no head has told."""
    untold = [hop for hop in hops if hop.tokens is None]
    if not untold:
        return
    session_pk, last_epoch = untold[0].session_id, max(hop.epoch for hop in hops)
    failovers = Failover.objects.filter(session=session_pk) if last_epoch else Failover.objects.none()
    had = had_by_client(answer, dict(failovers.values_list("epoch", "position")), last_epoch)
    for hop in untold:
        hop.tokens = had.get(hop.epoch)
    for epoch in {hop.epoch for hop in untold} & set(had):
        SessionHop.objects.filter(session=session_pk, epoch=epoch, tokens=None).update(tokens=had[epoch])


def _add(name: str, node: Node | None, model_name: str, work: Work, now: datetime) -> None:
    owner = node.joined_with if node else None
    key = {"node_name": name, "owner": owner, "day": tallies.day_of(now), "model_name": model_name}
    amounts = {"sessions": 1, "tokens": work.tokens, "token_layers": work.token_layers}
    tallies.add(Contribution.objects, key, amounts, node=node, owner_label=owner.label if owner else "")
