"""Placement: what each model's mesh can do, where it is weakest, and which moves are proposed, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone

from tracker import machines, moves
from tracker.dashboard.actions import Done, Refused, action
from tracker.dashboard.pages import Ask, Context, Page
from tracker.dashboard.paging import paged
from tracker.forecasts import Forecast, in_words, predict
from tracker.groups import OPERATE
from tracker.models import LanguageModel, Move, Node
from tracker.words import counted

Rebalancing = LanguageModel.Rebalancing
MOST_SHOWN = 50  # nodes whose reasons the page tells; each node's own page has its reason too


def context(ask: Ask) -> Context:
    open_moves = defaultdict[int, list[Move]](list)
    for move in Move.objects.filter(state__in=Move.OPEN).select_related("node").order_by("created", "pk"):
        open_moves[move.model_id].append(move)
    past = Move.objects.exclude(state__in=Move.OPEN).select_related("node", "model").order_by("-changed", "-pk")
    models = LanguageModel.objects.all()
    return {
        "models": [_story(model, open_moves[model.pk], ask.now) for model in models],
        "past": paged(past, ask),
        "settings": Rebalancing.choices,
    }


page = Page("placement", "Placement", context, every_s=2.0)


@action(OPERATE, asks=lambda pk: "Accept this move?")
def accept(request: HttpRequest, why: str, pk: int) -> Done:
    move = get_object_or_404(Move.objects.select_related("node"), pk=pk)
    if not moves.accept(move, str(request.user), timezone.now()):
        raise Refused(f"{move} isn't proposed any more: look at what became of it below.")
    return Done(f"{move} is accepted: it begins as soon as no layer is left alone by it.", "accept move", [move])


@action(OPERATE, asks=lambda pk: "Drop this move?")
def drop(request: HttpRequest, why: str, pk: int) -> Done:
    move = get_object_or_404(Move.objects.select_related("node"), pk=pk)
    outcome = f"{request.user} dropped it{f': {why}' if why else ''}"
    if not moves.drop(move, str(request.user), outcome, timezone.now()):
        raise Refused(f"{move} can't be dropped any more: it is {move.state}.")
    return Done(f"{move} is dropped; the same isn't proposed again within a day.", "drop move", [move])


@action(OPERATE, asks=lambda pk: "Change who decides on moves?")
def give_setting(request: HttpRequest, why: str, pk: int) -> Done:
    model, wanted = get_object_or_404(LanguageModel, pk=pk), request.POST.get("rebalancing", "")
    if wanted not in Rebalancing.values:
        raise Refused(f"Rebalancing is one of {', '.join(Rebalancing.values)}.")
    before = model.rebalancing
    LanguageModel.objects.filter(pk=pk).update(rebalancing=wanted)
    return Done(f"Rebalancing of {model}: {wanted}.", "rebalancing", [model], {"from": before, "to": wanted})


def _story(model: LanguageModel, open_moves: Sequence[Move], now: datetime) -> dict[str, Any]:
    nodes = list(machines.here(model, now).filter(status=Node.Status.APPROVED)) if model.num_layers else []
    told: dict[str, Any] = {"model": model, "moves": list(map(_move, open_moves)), "num_nodes": len(nodes)}
    if not nodes:
        return told
    mesh = machines.mesh_of(model, nodes, now)
    picked = [node for node in nodes if node.picks_layers]
    return (
        told
        | {
            "num_picked": len(picked),
            "demand": mesh.demand,
            "chosen": [
                {"node": node, "layers": str(node.shard), "reason": node.shard.reason} for node in picked[:MOST_SHOWN]
            ],
            "num_unshown": max(0, len(picked) - MOST_SHOWN),
        }
        | forecast_story(predict(mesh))
    )


def forecast_story(forecast: Forecast) -> dict[str, Any]:
    """What a mesh can do, as this page and the what-if page tell it."""
    return {
        "forecast": forecast,
        "weakest": in_words(forecast.weakest),
        "missing": in_words(forecast.missing),
        "fragile": in_words(forecast.fragile),
        "hops": counted(forecast.num_hops, "hop"),
    }


def _move(move: Move) -> dict[str, Any]:
    return {
        "move": move,
        "is_proposed": move.state == Move.State.PROPOSED,
        "can_drop": move.state in (Move.State.PROPOSED, Move.State.ACCEPTED),
        "kind": "busy" if move.state != Move.State.PROPOSED else "off",
    }
