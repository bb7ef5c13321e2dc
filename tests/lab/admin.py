"""The admin of a running site as its operator uses it: a login, and actions on rows by their names."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import requests

if TYPE_CHECKING:
    from tests.lab.site import Site

PASSWORD = "not-a-common-one-4711"


class Operator:
    """A superuser of the site's, made and logged in."""

    def __init__(self, site: Site, name: str) -> None:
        site.env["DJANGO_SUPERUSER_PASSWORD"] = PASSWORD
        site.manage("createsuperuser", "--noinput", "--username", name, "--email", "")
        self._url = site.local_url
        self._http = requests.Session()
        self.post("/admin/login/", {"username": name, "password": PASSWORD, "next": "/admin/"})

    def page(self, path: str) -> str:
        answer = self._http.get(self._url + path, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, path: str, form: dict[str, str]) -> str:
        """The words of the page that follows."""
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.page(path))
        assert token
        answer = self._http.post(self._url + path, form | {"csrfmiddlewaretoken": token[1]}, timeout=20)
        assert answer.status_code == 200, answer.text
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())

    def act(self, table: str, action: str, pk: int, **form: str) -> str:
        path = f"/admin/tracker/{table}/"
        return self.post(path, {"action": action, "_selected_action": str(pk), **form})
