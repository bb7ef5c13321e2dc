"""The site's own settings, with credentials that are their own proof: a thousand peers need no thousand rows."""

from meshweb.settings import *  # noqa: F403

RELAY_AUTHENTICATE = "tests.relay.credentials.authenticate_peer"
RELAY_REVIEW = "tests.relay.credentials.review_peers"
SILENCED_SYSTEM_CHECKS = ["tracker.E002"]  # nothing here is in the database that two processes would share
