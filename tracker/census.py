"""What the whole site has now, counted in the database for /metrics: nodes, running sessions, models that answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relay import presence
from tracker import epochs
from tracker.models import ChatSession, LanguageModel, Node


@dataclass(frozen=True, slots=True)
class Census:
    """Every process of a site counts the same."""

    nodes: dict[str, int] = field(default_factory=dict)  # by standing: online, offline, pending, revoked
    running: dict[str, int] = field(default_factory=dict)  # sessions, by model
    answers: dict[str, int] = field(default_factory=dict)  # by model: 1 while it has a route, else 0


def taken(now: datetime) -> Census:
    models = list(LanguageModel.objects.all())
    running = dict.fromkeys((model.name for model in models), 0)
    by_model = ChatSession.objects.running(now).order_by().values_list("model__name").annotate(Count("pk"))
    answers = {model.name: int(epochs.route_problem(model, now) is None) for model in models}
    return Census(_nodes(now), running | dict(by_model), answers)


def _nodes(now: datetime) -> dict[str, int]:
    by_status = dict(Node.objects.order_by().values_list("status").annotate(Count("pk")))
    num_online = Node.objects.online(now, presence.present()).count()
    others = {status.value: by_status.get(status, 0) for status in (Node.Status.PENDING, Node.Status.REVOKED)}
    return {"online": num_online, "offline": max(0, by_status.get(Node.Status.APPROVED, 0) - num_online)} | others


def exposed(site: Census) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(site))
    return exposition.generate_latest(registry)


class _Collected(Collector):
    def __init__(self, site: Census) -> None:
        self._site = site

    def collect(self) -> Iterator[Metric]:
        for name, says, label, values in (
            ("meshnet_nodes", "Nodes of the site, by whether they work.", "standing", self._site.nodes),
            ("meshnet_sessions_running", "Sessions that run on the site, by model.", "model", self._site.running),
            (
                "meshnet_model_answers",
                "1 while a model can be asked, 0 while it has no route.",
                "model",
                self._site.answers,
            ),
        ):
            family = GaugeMetricFamily(name, says, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family
