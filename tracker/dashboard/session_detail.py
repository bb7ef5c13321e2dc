"""A session: the way it takes, what its steps cost at each hop, its last steps as a picture, what happened to it."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from tracker import operating, stories
from tracker.dashboard.actions import Done, Refused, action
from tracker.dashboard.happenings import happenings
from tracker.dashboard.pages import Ask, Context, Page
from tracker.dashboard.timeline import timeline
from tracker.groups import CANCEL
from tracker.hopreports import KINDS
from tracker.models import ChatSession


def context(ask: Ask) -> Context:
    args = dict(ask.args)
    sessions = stories.sessions_with_hops().filter(completion_id=args["completion_id"], choice=args.get("choice", 0))
    session = sessions.select_related("last_steps").first()
    if session is None:
        raise Http404("There is no session of this id: it may be older than this site keeps them.")
    story = stories.whole_story(session, ask.now)
    routes = {session.epoch: story["hops"]} | {one["epoch"]: one["hops"] for one in story["earlier_routes"]}
    return {
        "session": story,
        "metadata": list(session.metadata.items()),
        "error_details": session.error_details,
        "api_key": session.api_key,
        "cancelled_by": session.cancelled_by,
        "is_ending": bool(session.cancelled_by) and story["state"] == ChatSession.State.RUNNING,
        "hops": _hops(session, story["hops"]),
        "kinds": KINDS,
        "has_percentiles": any(hop["compute_p50_ms"] is not None for hop in story["hops"]),
        "timeline": timeline(story["last_steps"], routes),
        "happenings": happenings(story, session.cancelled_by),
    }


def _hops(session: ChatSession, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of now, with what the picture of the route needs: each hop's usual step as shares of the longest one's."""
    nodes = {hop.position: hop.node_id for hop in session.hops.all() if hop.epoch == session.epoch}
    took = [[hop[f"{kind}_p50_ms"] or 0.0 for kind in KINDS] for hop in told]
    longest = max(map(sum, took), default=0.0) or 1.0
    return [
        hop
        | {
            "node_pk": nodes.get(position),
            "is_head": position == 0,
            "is_tail": position == len(told) - 1,
            "usual_ms": sum(times) or None,
            "shares": [(kind, 100 * ms / longest) for kind, ms in zip(KINDS, times, strict=True)],
        }
        for position, (hop, times) in enumerate(zip(told, took, strict=True))
    ]


@action(CANCEL, asks=lambda completion_id, choice=0: "End this session?")
def cancel(request: HttpRequest, why: str, completion_id: str, choice: int = 0) -> Done:
    session = get_object_or_404(ChatSession, completion_id=completion_id, choice=choice)
    if not operating.cancel(request, ChatSession.objects.filter(pk=session.pk), why).names:
        raise Refused(f"Session {session} doesn't run, or somebody has cancelled it already: there is nothing to end.")
    return Done(f"Session {session} ends within a few seconds. Its client is told that an operator ended it.")


page = Page("session-detail", "Session", context)
