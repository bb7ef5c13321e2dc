"""A site with much on it, for tests and benchmarks of its pages: 200 nodes, 10,000 sessions, all that belongs to them.

    made = crowd()                          # needs a database; a few seconds. crowd(20, 100) is one of every kind
    with made.connected(): client.get("/")  # gives the nodes their sockets on the relay of this process

Every 20 nodes there is one of each kind that a page tells apart; every 100 sessions likewise. `spice` goes into every
text that somebody outside wrote, so that a page shows whether it escapes them. The same numbers make the same rows.
"""

from tests.tracker.crowd.sites import Crowd, crowd

__all__ = ["Crowd", "crowd"]
