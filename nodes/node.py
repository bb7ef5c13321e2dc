"""The life of a node process: opens its state, registers, loads its layers, serves until told to stop, leaves."""

from __future__ import annotations

import logging
import ssl
import sys
import threading
from collections.abc import Mapping
from typing import Any

import torch

from nodes.api import NodeApi
from nodes.boundaries import Budget
from nodes.bridge import RelayHttpBridge
from nodes.chat import Head
from nodes.completion import DEFAULT_MAX_TOKENS
from nodes.deadline import Deadline
from nodes.engine import Engine, NotNumbers
from nodes.executors import load_shard
from nodes.facts import address_towards, check_executor, keeps_dense, node_facts, room_for_caches
from nodes.hops import Dialler
from nodes.loading import Loading, Stopped
from nodes.membership import Membership
from nodes.options import NodeOptions, UsageError
from nodes.registration import Registration, Standing
from nodes.reroute import TrackerRerouter
from nodes.server import NodeServer
from nodes.shard import Shard
from nodes.sockets import tls_context
from nodes.sources import model_name, open_model
from nodes.state import NodeState
from nodes.steps import Layers
from nodes.text import Tokenizer
from nodes.threads import usable_cores
from nodes.tickets import TicketBook, TrackerClock
from nodes.tracker import Tracker
from nodes.tunnel import Tunnel
from nodes.weights import ModelError, ModelFolder
from relay.pages import use_huge_pages

logger = logging.getLogger(__name__)

DRAIN_DEADLINE_S = 8.0  # for the step in hand and the answers that wait to be sent
CLOSE_DEADLINE_S = 3.0
PACE_DEADLINE_S = 60.0
LARGE_ELEMENTS = 16_000_000  # a shard of fewer numbers leaves room in the processor's caches


class Node:
    def __init__(self, options: NodeOptions, stopping: threading.Event) -> None:
        self._options, self._stopping = options, stopping
        self._clock = TrackerClock()
        self._engine: Engine | None = None
        self._server: NodeServer | None = None
        self._bridge: RelayHttpBridge | None = None
        self._api: NodeApi | None = None
        self._ms_per_layer: float | None = None
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
        endpoint = self._listen()
        facts = node_facts(options, folder, endpoint, max_cached_tokens)
        membership = Membership(tracker, state, facts, options.join_token, self._stopping)
        membership.hear = lambda standing: self._clock.set(standing.now)
        membership.news = self._news
        registration = membership.join()
        if registration is None:
            return
        membership.start()
        try:
            self._serve(registration, membership, folder, max_cached_tokens, tls)
        except Stopped:
            logger.info("Told to stop while loading; what has arrived is kept")
        finally:
            logger.info("Stopping")
            membership.leave()
            self._drain()
        if membership.failure:
            raise membership.failure

    def _serve(
        self,
        registration: Registration,
        membership: Membership,
        folder: ModelFolder,
        max_cached_tokens: int,
        tls: ssl.SSLContext,
    ) -> None:
        name = model_name(self._options.model)
        # A tokenizer that can't be used is said before hours of loading.
        tokenizer = Tokenizer.load(folder, self._options.tokenizer) if registration.start_layer == 0 else None
        shard = _load(folder, registration, self._options, self._loading)
        self._engine = Engine(shard, max_cached_tokens, node=self._options.name)
        self._engine.start()
        self._measure_pace(self._engine)
        book = TicketBook(registration.peer_id, folder.fingerprint, self._clock)
        book.set_keys(registration.standing.ticket_keys)
        membership.hear = lambda standing: self._hear(standing, book)
        tunnel = self._tunnel(registration)
        options, key = self._options, registration.node_key
        dialler = Dialler(registration.relay_url, key, tls, tunnel, options.prefer, options.patience_s)
        head = None
        if tokenizer:
            head = Head(
                registration.peer_id,
                shard.width,
                shard.context_length,
                self._engine,
                tokenizer,
                dialler,
                shard.vocab_size,
                self._options.max_drafts,
                TrackerRerouter(options.tracker_url, key, tls),
                Budget(options.kept_mb * 1_000_000),
            )
        if folder.num_elements(shard.start_layer, shard.end_layer) >= LARGE_ELEMENTS:
            logger.info("%d MB lie in huge pages", use_huge_pages() // 1_000_000)
        self._api = NodeApi(name, _layers(shard), self._engine, book, head, registration.node_key)
        if not self._wait(membership.approved):
            return
        if self._server:
            self._server.api = self._api
            membership.serving()
        if registration.relay_url and self._options.uses_relay:
            key, peer_id = registration.node_key, registration.peer_id
            self._bridge = RelayHttpBridge(
                self._api,
                registration.relay_url,
                peer_id,
                key,
                tls,
                tunnel=tunnel,
                ping_s=self._options.relay_ping_s,
            )
            self._bridge.start()
        if not self._wait_until_reachable(membership):
            return
        logger.info("Caches: up to %d tokens of all chats together", max_cached_tokens)
        logger.info("Ready: layers %d–%d of %s", shard.start_layer, shard.end_layer - 1, name)
        self._stopping.wait()

    def _tunnel(self, registration: Registration) -> Tunnel | None:
        """Where this node and the relay speak version 2 of the wire."""
        return Tunnel() if 2 in self._options.wire_versions and 2 in registration.wire_versions else None

    def _hear(self, standing: Standing, book: TicketBook) -> None:
        self._clock.set(standing.now)
        book.set_keys(standing.ticket_keys)

    def _wait_until_reachable(self, membership: Membership) -> bool:
        """On each way that was asked for; an endpoint beside the relay may turn out not to work."""
        if self._bridge and not self._wait(self._bridge.connected):
            return False
        if not self._server:
            return True
        return self._wait(membership.endpoint_tried if self._bridge else membership.endpoint_proved)

    def _wait(self, event: threading.Event) -> bool:
        """Until the event, or until the node is told to stop, which is False."""
        while not event.wait(0.2):
            if self._stopping.is_set():
                return False
        return not self._stopping.is_set()

    def _listen(self) -> str | None:
        """Opens the port, if there is to be one; the endpoint under which others reach it."""
        if self._options.listen is None:
            return None
        host, port = self._options.listen
        server = NodeServer(host, port)
        try:
            bound_host, bound_port = server.start()
        except OSError as error:
            raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from None
        self._server = server
        if bound_host in ("0.0.0.0", "::"):
            bound_host = address_towards(self._options.tracker_url)
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        logger.info("Listening on http://%s:%d", shown, bound_port)
        return f"http://{shown}:{bound_port}"

    def _news(self) -> Mapping[str, Any]:
        if self._engine is None:
            return {"state": "loading", **self._loading.news()}
        state = "stopping" if self._stopping.is_set() else "serving"
        pace = {} if self._ms_per_layer is None else {"ms_per_layer": self._ms_per_layer}
        return {"state": state, **self._engine.occupancy().as_dict(), **pace}

    def _measure_pace(self, engine: Engine) -> None:
        """Also warms up the layers: the first chat doesn't find them cold."""
        try:
            self._ms_per_layer = round(engine.measure_pace().result(PACE_DEADLINE_S), 3)
        except NotNumbers as error:
            raise ModelError(f"{error}: their weights are damaged; get the model's files anew") from None
        except Exception as error:  # a node that is slow, or whose layers fail, says so when it is asked to work
            logger.warning("The time of a layer couldn't be measured: %r", error)
            return
        logger.info("One token takes %.2f ms in each layer", self._ms_per_layer)

    def _drain(self) -> None:
        """Ends what runs here after the step in hand; every asker gets an answer."""
        deadline = Deadline.after(DRAIN_DEADLINE_S)
        if self._api:
            self._api.drain(deadline)
        if self._engine:
            self._engine.stop(deadline.left_s())
        if self._bridge:
            self._bridge.stop(Deadline.after(CLOSE_DEADLINE_S))


def _load(folder: ModelFolder, registration: Registration, options: NodeOptions, loading: Loading) -> Shard:
    start, end = registration.start_layer, registration.end_layer
    with loading:
        folder.prepare(start, end, loading)
    form = options.dtype if options.weights == "dense" else f"{options.weights} and {options.dtype}"
    logger.info("Loading layers %d–%d in %s", start, end - 1, form)
    logger.info("Threads that compute: %d; %s", options.num_threads, usable_cores().words(options.num_threads))
    torch.set_num_threads(options.num_threads)
    if keeps := keeps_dense(options, folder):
        logger.info("Their dense weights are kept beside, for prompts: there is memory for both")
    shard = load_shard(
        folder,
        start,
        end,
        options.dtype,
        weights=options.weights,
        executor=options.executor,
        keeps_dense=keeps,
        progress=sys.stderr.isatty(),
    )
    logger.info("Loaded layers %d–%d, computed by the %s executor", start, end - 1, shard.executor)
    return shard


def _layers(shard: Shard) -> Layers:
    return Layers(
        start_layer=shard.start_layer,
        end_layer=shard.end_layer,
        num_layers=shard.num_layers,
        width=shard.width,
        vocab_size=shard.vocab_size,
        context_length=shard.context_length,
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return tls_context(ca_file)
    except OSError as error:  # an SSLError is one
        raise UsageError(f"--ca-file {ca_file} can't be used: {error.strerror or error}") from None
