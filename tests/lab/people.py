"""Who looks at a site's pages in a browser: users of each group, logged in, and what a page must never do to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from tests.lab.site import Site

GROUPS = ("viewer", "operator", "admin")
_MAKE = """
import json
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Group, User
from django.contrib.sessions.backends.db import SessionStore
told = {}
for name in ("viewer", "operator", "admin", "root"):
    user = User.objects.create_user(name, is_superuser=name == "root", is_staff=name == "root")
    user.groups.set(Group.objects.filter(name=name))
    session = SessionStore()
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    told[name] = session.session_key
print(json.dumps(told))
"""
REFUSED = "Failed to load resource"  # how Chromium logs any status from 400 on; tests say which are meant


def make(site: Site, beside: str = "") -> dict[str, str]:
    """A user of each group and one above them, "root"; the cookie of each, by name. `beside`: Python that the same
    process runs."""
    said = site.manage("shell", "--verbosity", "0", "-c", f"{beside}\n{_MAKE}")
    told: dict[str, str] = json.loads(said.splitlines()[-1])
    return told


@dataclass
class Window:
    """A browser's window, for one test: at its end nothing may have gone wrong in it."""

    site: Site
    context: BrowserContext
    page: Page = field(init=False)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        browser: Browser,
        site: Site,
        cookie: str = "",
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 800,
        scripts: bool = True,
    ) -> Self:
        context = browser.new_context(
            base_url=site.url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            java_script_enabled=scripts,
        )
        context.set_default_timeout(30_000)
        if cookie:
            context.add_cookies([{"name": "sessionid", "value": cookie, "url": site.url}])
        return cls(site, context)

    def __post_init__(self) -> None:
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(f"{self.page.url}: {error}"))
        self.page.on("console", self._logged)
        self.page.on("request", self._requested)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.wrong == []

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type == "error" and REFUSED not in message.text:
            self.wrong.append(f"{self.page.url}: {message.text}")

    def _requested(self, request: Request) -> None:
        """Pages load nothing from elsewhere."""
        if urlsplit(request.url).netloc not in ("", urlsplit(self.site.url).netloc):
            self.wrong.append(f"{self.page.url}: asks {request.url}")
