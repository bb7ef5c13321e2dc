from django.urls import path, re_path

from relay.consumers import NoDoor, PeerConsumer, RpcConsumer

websocket_urlpatterns = [
    path("ws", PeerConsumer.as_asgi()),
    path("rpc/<str:peer_id>", RpcConsumer.as_asgi()),
    re_path("", NoDoor.as_asgi()),  # stays the last one
]
