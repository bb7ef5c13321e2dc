from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from tracker.dashboard import (
    answering,
    firststeps,
    node_actions,
    node_detail,
    node_list,
    overview,
    session_detail,
    session_list,
    topology,
)
from tracker.dashboard import chat as chat_page
from tracker.forms import SiteLoginForm
from tracker.views import chat, documents, metrics, models, nodes, session_stories, sessions, usage

urlpatterns = [
    path("", overview.page.view, name=overview.page.name),
    path("topology", topology.page.view, name=topology.page.name),
    path("nodes", node_list.page.view, name=node_list.page.name),
    path("nodes/<int:pk>", node_detail.page.view, name=node_detail.page.name),
    path("nodes/<int:pk>/ban", node_actions.ban, name="node-ban"),
    path("nodes/<int:pk>/<slug:name>", node_actions.act, name="node-act"),
    path("sessions", session_list.page.view, name=session_list.page.name),
    path("first-join-token", firststeps.first_join_token, name="first-join-token"),
    path("chat", chat_page.page.view, name=chat_page.page.name),
    path("chat/answer", answering.chat_answer, name="chat-answer"),
    path("chat/<slug:completion_id>/route", chat_page.route, name="chat-route"),
    path("login", LoginView.as_view(template_name="login.html", authentication_form=SiteLoginForm), name="login"),
    path("logout", LogoutView.as_view(next_page="login"), name="logout"),
    path("sessions.json", session_stories.listed, name="session-list-json"),
    path("sessions/<slug:completion_id>", session_detail.page.view, name=session_detail.page.name),
    path("sessions/<slug:completion_id>.json", session_stories.one, name="session-detail-json"),
    path("sessions/<slug:completion_id>/<int:choice>", session_detail.page.view, name=session_detail.page.name),
    path("sessions/<slug:completion_id>/<int:choice>/cancel", session_detail.cancel, name="session-cancel"),
    path("sessions/<slug:completion_id>/<int:choice>.json", session_stories.one, name="session-detail-json"),
    path("metrics", metrics.metrics),
    path("docs", documents.documentation, name="documentation"),
    path("api/nodes/register", nodes.register),
    path("api/nodes/heartbeat", nodes.heartbeat),
    path("api/nodes/unregister", nodes.unregister),
    path("api/sessions/<str:session_id>/reroute", sessions.reroute),
    path("v1/chat/completions", chat.chat_completions),
    path("v1/completions", chat.completions),
    path("v1/models", models.model_list),
    path("v1/models/<path:name>", models.model_detail),
    path("v1/openapi.json", documents.openapi_document),
    path("v1/usage", usage.usage_of_key),
    path("v1", models.unknown),
    path("v1/", models.unknown),
    path("v1/<path:path>", models.unknown),
]
