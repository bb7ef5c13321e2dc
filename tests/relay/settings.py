"""The relay alone: no tracker, no database, credentials of the form `<peer_id>.<scope>.<what>`."""

from meshweb import env

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["relay"]
ROOT_URLCONF = "tests.relay.site"
ASGI_APPLICATION = "tests.relay.site.application"
ALLOWED_HOSTS = ["*"]
DATABASES: dict[str, dict[str, object]] = {}
MIDDLEWARE: list[str] = []
RELAY_URL = env.text("RELAY_URL", "ws://relay.example")
REDIS_URL = env.text("REDIS_URL")
RELAY_AUTHENTICATE = "tests.relay.credentials.authenticate_peer"
RELAY_PING_S = env.number("RELAY_PING_S", 10.0, least=0.1)
USE_TZ = True
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
