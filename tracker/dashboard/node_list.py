"""Nodes: which there are, the state of each and why, what it has and how it goes with it."""

from __future__ import annotations

from django.conf import settings

from relay import presence
from tracker.dashboard import node_filters
from tracker.dashboard.node_filters import ORDERS, STATES
from tracker.dashboard.node_rows import CONTRIBUTED_DAYS, SHOWN, rows_of
from tracker.dashboard.pages import Ask, Context, Page
from tracker.dashboard.paging import paged
from tracker.models import LanguageModel


def context(ask: Ask) -> Context:
    present = presence.present()
    found = node_filters.filtered(ask, present).select_related("model", "shard")
    shown = paged(found, ask)
    return {
        "rows": rows_of(shown.rows, ask.now),
        "paged": shown,
        "counts": node_filters.counts(ask.now, present),
        "is_filtered": node_filters.is_filtered(ask),
        "chosen": {name: ask.param(name) for name in ("q", "state", "model", "order")},
        "states": {name: words for name, (words, _) in STATES.items()},
        "orders": {name: words for name, (words, _) in ORDERS.items()},
        "models": LanguageModel.objects.values_list("name", flat=True),
        "span": SHOWN,
        "contributed_days": CONTRIBUTED_DAYS,
        "has_nodes": False,  # for the first steps, which stand here where there are none
        "public_url": settings.PUBLIC_URL,
    }


page = Page("node-list", "Nodes", context, every_s=2.0)
