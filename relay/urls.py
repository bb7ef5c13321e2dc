from django.urls import path, re_path

from relay.consumers import NoDoor, PeerConsumer, RpcConsumer

websocket_urlpatterns = [
    path("ws", PeerConsumer.as_asgi()),
    re_path(r"^rpc/(?P<peer_id>[!-.0-~]{1,128})$", RpcConsumer.as_asgi()),  # as an id may be; not a slash
    re_path("", NoDoor.as_asgi()),  # stays the last one
]
