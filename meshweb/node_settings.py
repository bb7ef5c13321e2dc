"""Settings of a node's commands: no database, no Channels, no secret of the site."""

from __future__ import annotations

from meshweb import env, logs

SECRET_KEY = "a node signs nothing with it"  # Django wants one to be there
INSTALLED_APPS = ["nodes"]
DATABASES: dict[str, dict[str, object]] = {}
USE_TZ = True
TIME_ZONE = "UTC"  # of the log
MESHNET_JOIN_TOKEN = env.text("MESHNET_JOIN_TOKEN")
# A private authority for https and wss, beside the system's: what requests and OpenSSL users set already.
MESHNET_CA_FILE = env.text("SSL_CERT_FILE") or env.text("REQUESTS_CA_BUNDLE")
MESHNET_WIRE_VERSIONS = env.words("MESHNET_WIRE_VERSIONS")  # of the relay, as 1 or 1,2; empty: all there are
MESHNET_RELAY_PING_S = env.number("MESHNET_RELAY_PING_S", 10.0, least=0.2)  # a dead relay is noticed within twice that
MESHNET_SLEEP_GAP_S = env.number("MESHNET_SLEEP_GAP_S", 20.0, least=0.5)  # after such a gap in time a node begins anew
MESHNET_CACHE_DIR = env.text("MESHNET_CACHE_DIR")  # models; empty: the user's cache directory
_QUIET = ("urllib3", "transformers", "cheroot", "websocket")
LOGGING = logs.configuration(env.choice("LOG_LEVEL", logs.LEVELS), env.choice("LOG_FORMAT", logs.FORMATS), quiet=_QUIET)
