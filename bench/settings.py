"""The site's own settings, with credentials that are their own proof: a thousand peers need no thousand rows."""

from meshweb.settings import *  # noqa: F403

RELAY_AUTHENTICATE = "tests.relay.credentials.authenticate_peer"
