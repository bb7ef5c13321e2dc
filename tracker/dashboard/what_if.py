"""What if: machines and a model, known or imagined; how they would be placed, and what tokens a second to expect."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tracker.dashboard.pages import Ask, Context, Page
from tracker.dashboard.placement import forecast_story
from tracker.dashboard.reckoning import Busy, reckoning
from tracker.dashboard.what_if_form import MOST_MACHINES, NODE, WhatIfForm, chosen_nodes, known_nodes
from tracker.forecasts import BATCH_GAIN, predict
from tracker.meshes import Machine, Mesh
from tracker.models import LanguageModel
from tracker.planning import CutShort, plan
from tracker.words import counted, layers_in_words

MOST_OFFERED = 200  # nodes
MOST_KEPT = 64  # placements that were reckoned last: people load a page again, and pass its address on

BUSY = "Others ask this page for much at this moment: load it again in a few seconds."
CUT_SHORT = "This was cut short: it is too much for a page to reckon. Ask for fewer machines, or fewer layers."


def context(ask: Ask) -> Context:
    nodes = chosen_nodes(ask.params)
    asked = dict(ask.params)
    form = WhatIfForm(asked if is_asked(ask) else None, initial={"weights": "dense"})
    told: Context = {
        "form": form,
        "known": list(known_nodes()[:MOST_OFFERED]),
        "chosen": {node.pk for node in nodes},
        "models": LanguageModel.objects.filter(num_layers__isnull=False).values_list("name", flat=True),
        "chosen_model": ask.param("model"),
        "most": MOST_MACHINES,
        "batch_gain": BATCH_GAIN,
    }
    if not form.is_bound:
        return told | {"says": "Say which model and which machines, and press Show."}
    if not form.is_valid():
        return told | {"says": "Some of it can't be reckoned with: see above."}
    mesh = form.mesh(nodes)
    told["num_left_out"] = form.num_left_out
    if not mesh.machines:
        return told | {"says": "Pick machines that are known, or say how many you imagine."}
    try:
        return told | _result(planned(mesh))
    except Busy:
        return told | {"says": BUSY}
    except CutShort:
        return told | {"says": CUT_SHORT}


page = Page("what-if", "What if", context, is_live=False)
_kept: dict[Mesh, Mesh] = {}


def is_asked(ask: Ask) -> bool:
    """Something of the form stands in the query."""
    return any(name in WhatIfForm().fields or name.startswith(NODE) for name, value in ask.params if value)


def planned(mesh: Mesh) -> Mesh:
    """Raises Busy and CutShort."""
    if (kept := _kept.get(mesh)) is not None:
        return kept
    with reckoning() as effort:
        found = plan(mesh, effort.may_go_on)
        if len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[mesh] = found
    return found


def _result(mesh: Mesh) -> dict[str, Any]:
    forecast = predict(mesh)
    holding = sorted((machine for machine in mesh.holders()), key=lambda machine: (machine.shard(), machine.key))
    return forecast_story(forecast) | {
        "rows": [_row(mesh, machine) for machine in holding],
        "idle": [machine.key for machine in mesh.machines if not machine.holds()],
        "parts": _parts(mesh),
        "num_layers": mesh.num_layers,
        "more_bytes": _more_bytes(mesh) if forecast.missing else None,
    }


def _row(mesh: Mesh, machine: Machine) -> dict[str, Any]:
    start, end = machine.shard()
    roles = [role for role, is_one in (("head", start == 0), ("tail", end == mesh.num_layers)) if is_one]
    return {
        "name": machine.key,
        "layers": layers_in_words(start, end),
        "number": end - start,
        "role": " and ".join(roles),
        "used_bytes": machine.needs_bytes(start, end, mesh.num_layers),
        "budget_bytes": machine.budget_bytes,
        "percent": round(100 * machine.needs_bytes(start, end, mesh.num_layers) / max(1, machine.budget_bytes)),
        "work_ms": mesh.work_ms(machine, start, end),
        "tokens_per_s": mesh.rate(machine, start, end),
    }


def _parts(mesh: Mesh) -> list[dict[str, Any]]:
    """Neighbours that are held as often, for the bar."""
    parts, at = [], 0
    for times, layers in groupby(mesh.num_holders):
        number = len(list(layers))
        kind = "gap" if not times else ("", "twice")[times - 1] if times < 3 else "more"
        words = f"{layers_in_words(at, at + number)}: {counted(times, 'machine') if times else 'nobody'}"
        parts.append({"kind": kind, "num_layers": number, "times": times, "words": words})
        at += number
    return parts


def _more_bytes(mesh: Mesh) -> int:
    """Memory that would hold the layers that are missing, with the end of the model where that is among them."""
    missing = mesh.missing()
    least = min(mesh.machines, key=lambda machine: machine.layer_bytes)
    ends = least.head_bytes * (0 in missing) + least.tail_bytes * (mesh.num_layers - 1 in missing)
    return len(missing) * least.layer_bytes + ends
