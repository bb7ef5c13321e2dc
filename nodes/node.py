"""The life of a node process: opens its state, registers, loads its layers, serves until told to stop, leaves."""

from __future__ import annotations

import functools
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nodes.completion import DEFAULT_MAX_TOKENS
from nodes.facts import address_towards, check_executor, node_facts, room_for_caches
from nodes.loading import Loading, Stopped
from nodes.membership import Membership
from nodes.options import NodeOptions, UsageError
from nodes.registration import NodeFacts, Registration, Standing
from nodes.server import NodeServer
from nodes.serving import CLOSE_DEADLINE_S, Serving
from nodes.sleep import SleepWatch, since_boot
from nodes.sockets import tls_context
from nodes.sources import model_name, open_model
from nodes.state import NodeState
from nodes.tickets import TrackerClock
from nodes.tracker import Tracker
from nodes.weights import ModelFolder

logger = logging.getLogger(__name__)

SIGNAL_S = 0.5


class Node:
    def __init__(
        self, options: NodeOptions, stopping: threading.Event, elapsed: Callable[[], float] = since_boot
    ) -> None:
        self._options, self._stopping, self._elapsed = options, stopping, elapsed
        self._clock = TrackerClock(elapsed)
        self._server: NodeServer | None = None
        self._bound = "", 0  # address and port of the server
        self.serving: Serving | None = None
        self._loading = Loading(stopping)

    def run(self) -> None:
        """Returns when the node was told to stop. Raises StateError, ModelError, UsageError, memory.DoesNotFit,
        TrackerUnreachable, TrackerRefused, NoCredential."""
        options = self._options
        state = NodeState(options.state_folder)
        state.open()
        tls = _tls(options.ca_file)
        tracker = Tracker(options.tracker_url, tls)
        try:
            self._run(state, tracker, tls)
        except Stopped:
            logger.info("Told to stop while loading; what has arrived is kept")
        finally:
            if self._server:
                self._server.stop(CLOSE_DEADLINE_S)
            tracker.close()
            state.close()

    def _run(self, state: NodeState, tracker: Tracker, tls: ssl.SSLContext) -> None:
        options = self._options
        folder = open_model(options.model, logger.info, self._loading.check)
        check_executor(options, folder)
        max_cached_tokens = room_for_caches(options, folder)
        if max_cached_tokens < DEFAULT_MAX_TOKENS:
            logger.warning("Caches hold %d tokens: a chat that names no max_tokens won't fit", max_cached_tokens)
        self._listen()
        facts = node_facts(options, folder, self._endpoint(), max_cached_tokens)
        membership = Membership(tracker, state, facts, options.join_token, self._stopping)
        membership.hear, membership.news = self._hear, self._news
        registration = membership.join()
        if registration is None:
            return
        membership.start()
        try:
            self._serve(registration, membership, facts, folder, tls)
        except Stopped:
            logger.info("Told to stop while loading; what has arrived is kept")
        finally:
            logger.info("Stopping")
            membership.leave()
            if self.serving:
                self.serving.drain()
        if membership.failure:
            raise membership.failure

    def _serve(
        self,
        registration: Registration,
        membership: Membership,
        facts: NodeFacts,
        folder: ModelFolder,
        tls: ssl.SSLContext,
    ) -> None:
        max_cached_tokens = facts.max_cached_tokens
        serving = Serving(self._options, registration, folder, self._clock, tls, max_cached_tokens, self._loading)
        self.serving = serving
        serving.load()
        if not self._wait(membership.approved):
            return
        serving.open(self._server)
        if self._server:
            membership.serving()
        if not self._wait_until_reachable(membership):
            return
        awake = functools.partial(self._begin_anew, membership, facts)
        watch = SleepWatch(self._options.sleep_gap_s, awake, self._elapsed)
        watch.start()
        logger.info("Caches: up to %d tokens of all chats together", max_cached_tokens)
        layers = registration.start_layer, registration.end_layer - 1
        logger.info("Ready: layers %d–%d of %s", *layers, model_name(self._options.model))
        while not self._stopping.wait(SIGNAL_S):
            pass  # a signal that came while the process was stopped may wake another thread: this one must look
        watch.stop()

    def _begin_anew(self, membership: Membership, facts: NodeFacts, gap_s: float) -> None:
        """Nobody counts on this node any more: it begins anew, from where it may be now."""
        logger.warning("This node slept for %.0f s: its caches are dropped, it connects and registers anew", gap_s)
        if self.serving:
            self.serving.forget_sessions()
        membership.renew(replace(facts, endpoint=self._endpoint()))

    def _hear(self, standing: Standing) -> None:
        self._clock.set(standing.now)
        if self.serving:
            self.serving.hear(standing)

    def _news(self) -> Mapping[str, Any]:
        news = self.serving.news() if self.serving else {}
        if not news:
            return {"state": "loading", **self._loading.news()}
        return {"state": "stopping" if self._stopping.is_set() else "serving", **news}

    def _wait_until_reachable(self, membership: Membership) -> bool:
        """On each way that was asked for; an endpoint beside the relay may turn out not to work."""
        bridge = self.serving.bridge if self.serving else None
        if bridge and not self._wait(bridge.connected):
            return False
        if not self._server:
            return True
        return self._wait(membership.endpoint_tried if bridge else membership.endpoint_proved)

    def _wait(self, event: threading.Event) -> bool:
        """Until the event, or until the node is told to stop, which is False."""
        while not event.wait(0.2):
            if self._stopping.is_set():
                return False
        return not self._stopping.is_set()

    def _listen(self) -> None:
        """Opens the port, if there is to be one."""
        if self._options.listen is None:
            return
        host, port = self._options.listen
        server = NodeServer(host, port)
        try:
            self._bound = server.start()
        except OSError as error:
            raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from None
        self._server = server
        logger.info("Listening on %s", self._own_address())
        if self._options.public_url:
            logger.info("Others reach it at %s", self._options.public_url)

    def _endpoint(self) -> str | None:
        """Where others reach the port: as its owner says, else at this machine's address of now."""
        return (self._options.public_url or self._own_address()) if self._server else None

    def _own_address(self) -> str:
        host, port = self._bound
        if host in ("0.0.0.0", "::"):
            host = address_towards(self._options.tracker_url)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return tls_context(ca_file)
    except OSError as error:  # an SSLError is one
        raise UsageError(f"--ca-file {ca_file} can't be used: {error.strerror or error}") from None
