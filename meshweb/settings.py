"""Settings of the site: tracker, relay, admin. Every value from outside is read through env, once, here."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from meshweb import databases, env, logs

BASE_DIR = Path(__file__).resolve().parent.parent
DEBUG = env.boolean("DEBUG", False)
DATA_DIR = Path(env.text("DATA_DIR", str(BASE_DIR / "data")))
DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _secret_key() -> str:
    """SECRET_KEY, or one made at the first start and kept in the data folder, mode 0600."""
    given = env.text("SECRET_KEY")
    if given:
        return given
    path = DATA_DIR / "secret_key"
    try:
        with open(path, "x", opener=_private) as file:
            file.write(secrets.token_urlsafe(50))
    except FileExistsError:
        pass
    return path.read_text()


SECRET_KEY = _secret_key()

# The address under which users and nodes reach this site: hosts, CSRF origins and relay addresses follow from it.
PUBLIC_URL = env.text("PUBLIC_URL", "http://127.0.0.1:8000").rstrip("/")
_public = urlsplit(PUBLIC_URL)
if _public.scheme not in ("http", "https") or not _public.hostname:
    raise ImproperlyConfigured(f"PUBLIC_URL must be like https://mesh.example.org; it is {PUBLIC_URL!r}")
_RELAY = (("ws", "wss"), "wss://mesh.example.org")
# Where nodes reach the relay's processes: all of them, and this one. The nodes of a model share a process.
RELAY_URLS = env.urls("RELAY_URLS", *_RELAY)
RELAY_URL = env.url("RELAY_URL", (RELAY_URLS or [PUBLIC_URL.replace("http", "ws", 1)])[0], *_RELAY)
RELAY_URLS = RELAY_URLS or [RELAY_URL]
REDIS_URL = env.url("REDIS_URL", "", ("redis", "rediss", "unix"), "redis://127.0.0.1:6379/0")  # joins the processes
REBALANCE_SETTLE_S = env.number("REBALANCE_SETTLE_S", 60.0, least=0)  # what changed so lately moves no node
RELAY_PING_S = env.number("RELAY_PING_S", 10.0, least=0.2)  # a socket that is silent for longer gets a ping
ALLOWED_HOSTS = [_public.hostname, "127.0.0.1", "localhost", "[::1]", *env.words("EXTRA_HOSTS")]
CSRF_TRUSTED_ORIGINS = [f"{_public.scheme}://{_public.netloc}"]
TRUSTED_PROXIES = env.networks("TRUSTED_PROXIES")  # whose X-Forwarded-For and -Proto are believed (meshweb/proxies.py)
_is_https = _public.scheme == "https"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _is_https
# Pages alone are sent on to https, and only where a proxy says how its client came: without one a site behind TLS would
# send everybody round in circles, and a program would not learn that its key has travelled in the open.
SECURE_SSL_REDIRECT = _is_https and bool(TRUSTED_PROXIES)
SECURE_SSL_HOST = _public.netloc
SECURE_REDIRECT_EXEMPT = [r"^v1(/|$)", r"^api/", r"\.json$", r"^metrics$"]
SECURE_HSTS_SECONDS = env.integer("HSTS_S", 3600, least=0) if _is_https else 0  # browsers come by https alone meanwhile
# What else is under this name, and lists that browsers are shipped with, are not this site's to speak for.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

INSTALLED_APPS = [
    "tracker.apps.SiteConfig",  # django.contrib.admin, with the relay's page
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",  # static files and a middleware that knows whose request it is
    "drf_spectacular_sidecar",  # static files alone: Swagger UI, for /docs
    "relay",
    "tracker",
]
MIDDLEWARE = [
    "tracker.middleware.answers_named_and_timed",
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",  # no middleware here may be only synchronous: a thread per chat
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "meshweb.urls"
ASGI_APPLICATION = "meshweb.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": databases.from_url(env.text("DATABASE_URL"), DATA_DIR / "meshnet.sqlite3")}
databases.make_private(DATABASES["default"])
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = "meshweb.formats"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
SERVESTATIC_USE_FINDERS = True  # straight from the packages: no collectstatic to forget

# Answers whose credential a socket or a request carries (relay/auth.py).
RELAY_AUTHENTICATE = "tracker.auth.authenticate_peer"
RELAY_REVIEW = "tracker.auth.review_peers"  # who of those connected may stay (relay/review.py)
METRICS_TOKEN = env.text("METRICS_TOKEN")  # opens /metrics

TICKET_KEYS = env.words("TICKET_KEYS")  # Ed25519 private keys, base64, newest first; none: one made at first migrate
API_KEYS_REQUIRED = env.boolean("API_KEYS_REQUIRED", True)
ALLOW_PRIVATE_ENDPOINTS = env.boolean("ALLOW_PRIVATE_ENDPOINTS", DEBUG)
REQUEST_DEADLINE_S = env.integer("REQUEST_DEADLINE_S", 300, least=1)  # a chat's time, from request to last token
HEAD_SILENCE_S = env.number("HEAD_SILENCE_S", 5.0, least=1.5)  # a head says something each second; silent, it is lost
FAILOVER_WAIT_S = env.number(
    "FAILOVER_WAIT_S", 20.0, least=0
)  # for a node to come (back), where no other has the layers
DASHBOARD_PUBLIC = env.boolean("DASHBOARD_PUBLIC", False)  # models, coverage and counts without a login
NEW_MODELS = env.boolean("NEW_MODELS", True)  # off: nodes join only with models that an operator has named
TICK = env.boolean("TICK", True)  # `serve` also does what `manage.py tick` does, in one process at a time
SESSION_KEEP_DAYS = env.integer("SESSION_KEEP_DAYS", 30, least=1)  # then the records of sessions are deleted
AUDIT_KEEP_DAYS = env.integer("AUDIT_KEEP_DAYS", 400, least=1)  # then what operators did is forgotten

LOGGING = logs.configuration(
    env.choice("LOG_LEVEL", logs.LEVELS),
    env.choice("LOG_FORMAT", logs.FORMATS),
    quiet=("httpx2", "httpcore2", "daphne", "twisted"),
    naming="tracker.middleware.NamesRequest",
)
