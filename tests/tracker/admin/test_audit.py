"""The log of what operators did: by whatever way, with who and why; nobody changes it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from tests.tracker.admin.conftest import url
from tests.tracker.people import client_of
from tracker.models import ApiKey, AuditEntry, JoinToken, LanguageModel, Node, RefusedFingerprint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("rows")]


@pytest.fixture
def client() -> Client:
    AuditEntry.objects.all().delete()
    return client_of("admin")


def told() -> list[tuple[str, str, str, str]]:
    rows = AuditEntry.objects.order_by("pk")
    return [(row.actor_name, row.action, row.kind, row.reason) for row in rows]


def act(client: Client, table: Any, action: str, **form: Any) -> None:
    chosen = {"action": action, "_selected_action": list(table.objects.values_list("pk", flat=True))}
    assert client.post(url(table), chosen | form).status_code == 302


def test_each_action_is_written_down_with_its_reason(client: Client) -> None:
    act(client, Node, "pause", reason="its fan is loud")
    act(client, LanguageModel, "refuse", reason="its license")
    act(client, JoinToken, "revoke", reason="it was lost")
    act(client, ApiKey, "revoke", reason="unpaid")
    assert told() == [
        ("one-admin", "pause", "node", "its fan is loud"),
        ("one-admin", "refuse", "model", "its license"),
        ("one-admin", "revoke", "join token", "it was lost"),
        ("one-admin", "revoke", "API key", "unpaid"),
    ]
    assert AuditEntry.objects.filter(address="127.0.0.1").count() == 4


def test_what_changed_nothing_isnt_written_down(client: Client) -> None:
    act(client, Node, "resume", reason="it works already")
    assert told() == []


def test_forms_write_down_what_they_changed(client: Client) -> None:
    model = LanguageModel.objects.get()
    form = {"name": "tiny", "fingerprint": "ab" * 32, "num_layers": 12, "hidden_size": 64, "context_length": 128}
    form |= {"prefill_chunk_tokens": 128, "wire_dtype": "bfloat16", "rebalancing": "propose", "deadline_s": 60}
    assert client.post(url(LanguageModel, model.pk, "change"), form).status_code == 302
    assert AuditEntry.objects.get().details == {"context_length": [256, 128], "deadline_s": 60}


def test_adding_and_deleting_are_written_down_and_no_secret_is(client: Client) -> None:
    page = client.post(url(JoinToken, "add"), {"label": "for Ada"}).content.decode()
    secret = page.split('value="join_')[1].split('"')[0].partition(".")[2]
    client.post(url(RefusedFingerprint, RefusedFingerprint.objects.get().pk, "delete"), {"post": "yes"})
    chosen = [JoinToken.objects.get(label="for Ada").pk]
    form = {"action": "delete_selected", "_selected_action": chosen, "post": "yes", "reason": "too many"}
    client.post(url(JoinToken), form)
    assert told() == [
        ("one-admin", "add", "join token", ""),
        ("one-admin", "delete", "refused fingerprint", ""),
        ("one-admin", "delete", "join token", "too many"),
    ]
    assert AuditEntry.objects.order_by("pk")[0].details == {"label": "for Ada"}
    assert secret not in str(AuditEntry.objects.values())


def test_commands_are_written_down(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("createjointoken", "--label", "by command")
    call_command("createapikey", "me", "--model", "tiny")
    call_command("apikeys", "--revoke", ApiKey.objects.get(label="me").key_id)
    call_command("languagemodel", "tiny", "--refuse", "its license")
    call_command("languagemodel", "tiny")
    assert told() == [
        ("command line", "add", "join token", ""),
        ("command line", "add", "API key", ""),
        ("command line", "revoke", "API key", ""),
        ("command line", "change", "model", "its license"),
    ]
    secrets = [line.partition(".")[2] for line in capsys.readouterr().out.split() if "_" in line and "." in line]
    assert not [secret for secret in secrets if len(secret) > 20 and secret in str(AuditEntry.objects.values())]


def test_it_is_filtered_and_searched(client: Client) -> None:
    act(client, Node, "pause", reason="its fan is loud")
    act(client, JoinToken, "revoke", reason="it was lost")
    for query, shown in (("?action=pause", "loud"), ("?q=lost", "lost"), ("?kind=node", "loud")):
        page = client.get(url(AuditEntry) + query).content.decode()
        assert [why in page for why in ("its fan is loud", "it was lost")] == [shown == "loud", shown == "lost"]
    assert client.get(url(AuditEntry) + "?actor_name=nobody").status_code == 200


def test_nobody_changes_or_deletes_it(client: Client) -> None:
    act(client, Node, "pause", reason="its fan is loud")
    mighty, entry = client_of("superuser"), AuditEntry.objects.get()
    form = {"action": "delete_selected", "_selected_action": [entry.pk], "post": "yes"}
    mighty.post(url(AuditEntry), form)
    for path in (url(AuditEntry, entry.pk, "change"), url(AuditEntry, entry.pk, "delete"), url(AuditEntry, "add")):
        assert mighty.post(path, {"reason": "another", "post": "yes"}).status_code == 403
    assert AuditEntry.objects.get().reason == "its fan is loud"
