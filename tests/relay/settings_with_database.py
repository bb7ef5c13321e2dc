"""As settings, with a database file and an app that has migrations."""

from meshweb import env
from tests.relay.settings import *  # noqa: F403

INSTALLED_APPS = ["relay", "django.contrib.contenttypes"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": env.text("DATABASE")}}
