"""Overview: which models answer, which layers are held how many times, and how much runs."""

from __future__ import annotations

from tracker import stories
from tracker.dashboard.pages import Ask, Context, Page
from tracker.models import Node


def context(ask: Ask) -> Context:
    return {"models": stories.model_stories(ask.now), "has_nodes": Node.objects.exists()}


page = Page("overview", "Overview", context, is_public=True)
