"""What the what-if page is asked, as the query of a URL: a model and machines, known or imagined; and their mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django import forms
from django.db.models import Q, QuerySet

from tracker.machines import DEFAULT_RTT_MS, machine_of, tail_layers_of
from tracker.meshes import Machine, Mesh
from tracker.models import LanguageModel, Node
from tracker.models.languages import MAX_LAYERS

MOST_NAMED = 500  # nodes of a query that are looked up; those over MOST_MACHINES are only counted
NODE = "node-"  # and its number: a box for each node that is known
ROWS = (1, 2, 3)  # of imagined machines, each of so many alike
MOST_MACHINES = 24  # a page waits for their placement
MB, GB = 1e6, 1e9
EFFICIENCY = 0.5  # of a memory's bandwidth, in reading weights: between one half and two thirds (bench.engine)
CACHE_SHARE = 0.15  # of a layer in 16 bits: room for caches beside it
WEIGHTS = {"dense": (1.0, 1.0), "int8": (0.505, 0.505), "int4": (0.3125, 0.505)}  # of a layer's 16 bits; of both ends'


class WhatIfForm(forms.Form):
    model = forms.CharField(required=False, max_length=200)
    num_layers = forms.IntegerField(label="layers", required=False, min_value=1, max_value=MAX_LAYERS)
    layer_mb = forms.FloatField(label="one layer in MB", required=False, min_value=0.001, max_value=1e6)
    head_mb = forms.FloatField(label="before the layers in MB", required=False, min_value=0, max_value=1e6)
    tail_mb = forms.FloatField(label="after them in MB", required=False, min_value=0, max_value=1e6)
    weights = forms.ChoiceField(
        label="Weights of imagined machines", required=False, choices=[(name, name) for name in WEIGHTS]
    )

    num_left_out = 0  # machines that the mesh has no room for

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for row in ROWS:
            self.fields[f"count{row}"] = forms.IntegerField(
                label="How many", required=False, min_value=0, max_value=MOST_MACHINES
            )
            for name, label, most in (
                ("memory", "Memory in GB", 1e5),
                ("bandwidth", "Bandwidth in GB/s", 1e5),
                ("rtt", "Round trip in ms", 1e5),
            ):
                self.fields[f"{name}{row}"] = forms.FloatField(
                    label=label, required=False, min_value=0.001, max_value=most
                )

    def clean(self) -> dict[str, Any]:
        told = super().clean() or {}
        row = LanguageModel.objects.filter(name=told.get("model") or "").first()
        if told.get("model") and row is None:
            self.add_error("model", "No model here is called so.")
        layers = told.get("num_layers") or (row.num_layers if row else None)
        layer_bytes = told["layer_mb"] * MB if told.get("layer_mb") else row.layer_bytes if row else None
        if not self.errors and (not layers or not layer_bytes):
            named = f"no node of {row.name} has told it" if row else "or choose a model"
            self.add_error(None, f"Say how many layers it has and what one takes in MB: {named}.")
        ends = {name: _end_bytes(told, row, name) for name in ("head", "tail")}
        return told | {"row": row, "layers": layers, "layer_bytes": layer_bytes, **ends}

    def imagined(self) -> list[dict[str, Any]]:
        """The fields of each row, for the template."""
        names = ("count", "memory", "bandwidth", "rtt")
        return [{"number": row, "fields": [self[f"{name}{row}"] for name in names]} for row in ROWS]

    def mesh(self, nodes: Sequence[Node]) -> Mesh:
        """Of a form without errors; the machines hold nothing yet."""
        told = self.cleaned_data
        known = [_of_node(node, told) for node in nodes]
        machines = (*known, *(machine for row in ROWS for machine in _imagined(row, told)))
        tail = told["tail"] / told["layer_bytes"]
        row = told["row"]
        self.num_left_out = max(0, len(machines) - MOST_MACHINES)
        return Mesh(told["layers"], machines[:MOST_MACHINES], tail_layers=tail or (tail_layers_of(row) if row else 0.0))


def known_nodes() -> QuerySet[Node]:
    """Those that have said what they have."""
    said = Node.objects.filter(budget_bytes__gt=0, layer_bytes__gt=0, ms_per_layer__gt=0)
    return said.exclude(status=Node.Status.REVOKED).select_related("model").order_by("name")


def chosen_nodes(params: Sequence[tuple[str, str]]) -> list[Node]:
    numbers = [name.removeprefix(NODE) for name, _ in params if name.startswith(NODE)]
    pks = [int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 18]
    return list(known_nodes().filter(Q(pk__in=pks[:MOST_NAMED]))) if pks else []


def _end_bytes(told: dict[str, Any], row: LanguageModel | None, name: str) -> float:
    said = told.get(f"{name}_mb")
    kept = getattr(row, f"{name}_bytes") if row else None
    return float(said * MB if said is not None else kept or 0.0)


def _of_node(node: Node, told: dict[str, Any]) -> Machine:
    """As it is with the model that it holds now, in proportion to what a layer takes."""
    share = 1.0
    is_same = told["row"] is not None and node.model_id == told["row"].pk and not told.get("layer_mb")
    if not is_same and node.model.layer_bytes:
        share = told["layer_bytes"] / node.model.layer_bytes
    machine = machine_of(node, rtt=DEFAULT_RTT_MS)
    _, by_ends = WEIGHTS.get(node.weights, WEIGHTS["dense"])
    return Machine(
        key=machine.key,
        budget_bytes=machine.budget_bytes,
        layer_bytes=max(1, round(machine.layer_bytes * share)),
        head_bytes=machine.head_bytes if is_same else round(told["head"] * by_ends),
        tail_bytes=machine.tail_bytes if is_same else round(told["tail"] * by_ends),
        ms_per_layer=machine.ms_per_layer * share,
        rtt_ms=machine.rtt_ms,
    )


def _imagined(row: int, told: dict[str, Any]) -> Iterator[Machine]:
    """As fast as its memory is read."""
    by_layer, by_ends = WEIGHTS[told.get("weights") or "dense"]
    layer_bytes = told["layer_bytes"] * by_layer
    bandwidth = (told.get(f"bandwidth{row}") or 20.0) * GB * EFFICIENCY
    for number in range(1, (told.get(f"count{row}") or 0) + 1):
        yield Machine(
            key=f"imagined {row}.{number}",
            budget_bytes=round((told.get(f"memory{row}") or 8.0) * GB),
            layer_bytes=max(1, round(layer_bytes + told["layer_bytes"] * CACHE_SHARE)),
            head_bytes=round(told["head"] * by_ends),
            tail_bytes=round(told["tail"] * by_ends),
            ms_per_layer=max(1e-6, 1000 * layer_bytes / bandwidth),
            rtt_ms=told.get(f"rtt{row}") or DEFAULT_RTT_MS,
        )
