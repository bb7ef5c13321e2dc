"""HTTP to Django, WebSockets to the relay and the live pages, all from the address that proxies in front vouch for."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshweb.settings")
pages = get_asgi_application()  # before anything that imports models

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from meshweb.handlers import ProgramsHandler, by_path  # noqa: E402
from meshweb.health import Health  # noqa: E402
from meshweb.proxies import TrustedProxies  # noqa: E402
from relay import metrics, review  # noqa: E402
from relay.background import Chore, WithChores  # noqa: E402
from relay.cluster import InCluster  # noqa: E402
from relay.urls import websocket_urlpatterns  # noqa: E402
from tracker import news, probes, readings, ticking  # noqa: E402
from tracker.consumers import live_urlpatterns  # noqa: E402

_http = Health(by_path(ProgramsHandler(), pages))
_sockets = URLRouter([*live_urlpatterns, *websocket_urlpatterns])  # the relay's end with a refusal of the rest
_doors = ProtocolTypeRouter({"http": _http, "websocket": _sockets})
_chores = [
    Chore(review.PERIOD_S, review.reviewer.start),
    Chore(metrics.LAG_PERIOD_S, metrics.loop_lag_s.add),
    Chore(news.PERIOD_S, news.giver.start),
    Chore(readings.PERIOD_S, readings.reader.start),
]
if settings.TICK:
    _chores += [Chore(ticking.PERIOD_S, ticking.ticker.start), Chore(probes.PERIOD_S, probes.prober.start)]
application = TrustedProxies(WithChores(InCluster(_doors), *_chores), settings.TRUSTED_PROXIES)
