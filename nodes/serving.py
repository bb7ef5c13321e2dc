"""What a registered node serves with: its layers, the engine that works them, its API and the doors to it."""

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
from nodes.deadline import Deadline
from nodes.engine import Engine, NotNumbers
from nodes.executors import load_shard
from nodes.facts import keeps_dense
from nodes.grammar import Grammars
from nodes.hops import Dialler
from nodes.loading import Loading
from nodes.options import NodeOptions
from nodes.registration import Registration, Standing
from nodes.reroute import TrackerRerouter
from nodes.server import NodeServer
from nodes.shard import Shard
from nodes.sources import model_name
from nodes.steps import Layers
from nodes.text import Tokenizer
from nodes.threads import usable_cores
from nodes.tickets import TicketBook, TrackerClock
from nodes.tunnel import Tunnel
from nodes.weights import ModelError, ModelFolder
from relay.pages import use_huge_pages

logger = logging.getLogger(__name__)

DRAIN_DEADLINE_S = 8.0  # for the step in hand and the answers that wait to be sent
CLOSE_DEADLINE_S = 3.0
PACE_DEADLINE_S = 60.0
LARGE_ELEMENTS = 16_000_000  # a shard of fewer numbers leaves room in the processor's caches
DRAINED = "this node is being drained"


class Serving:
    """From a registration to the end of the process, or to other layers. `bridge`: once its doors are open, where it
    uses the relay."""

    def __init__(
        self,
        options: NodeOptions,
        registration: Registration,
        folder: ModelFolder,
        clock: TrackerClock,
        tls: ssl.SSLContext,
        max_cached_tokens: int,
        loading: Loading,
    ) -> None:
        self._options, self._registration, self._folder = options, registration, folder
        self._clock, self._tls, self._max_cached_tokens, self._loading = clock, tls, max_cached_tokens, loading
        self._book = TicketBook(registration.peer_id, folder.fingerprint, clock)
        speaks_frames = 2 in options.wire_versions and 2 in registration.wire_versions
        self._tunnel = Tunnel() if speaks_frames else None
        self._engine: Engine | None = None
        self._api: NodeApi | None = None
        self.layers = registration.layers
        self._standing = registration.standing
        self._duty = "works"
        self.bridge: RelayHttpBridge | None = None

    def load(self) -> None:
        """Raises ModelError, loading.Stopped."""
        options, registration = self._options, self._registration
        self._book.set_keys(registration.standing.ticket_keys)
        # A tokenizer that can't be used is said before hours of loading.
        tokenizer = self._tokenizer()
        shard = _load(self._folder, registration, options, self._loading)
        self._engine = engine = Engine(shard, self._max_cached_tokens, node=options.name)
        engine.start()
        _measure_pace(engine)
        if self._folder.num_elements(shard.start_layer, shard.end_layer) >= LARGE_ELEMENTS:
            logger.info("%d MB lie in huge pages", use_huge_pages() // 1_000_000)
        grammars = Grammars(tokenizer, shard.vocab_size) if tokenizer else None
        head = self._head(engine, tokenizer, grammars) if tokenizer and shard.is_head else None
        name, key = model_name(options.model), registration.node_key
        self._api = NodeApi(name, _layers(shard), engine, self._book, head, key, grammars=grammars)
        self._follow()

    def open(self, server: NodeServer | None, approved: threading.Event) -> None:
        """The doors, once it is loaded and approved."""
        assert self._api
        registration = self._registration
        if server:
            server.api = self._api
        if registration.relay_url and self._options.uses_relay:
            self.bridge = RelayHttpBridge(
                self._api,
                registration.relay_url,
                registration.peer_id,
                registration.node_key,
                self._tls,
                tunnel=self._tunnel,
                ping_s=self._options.relay_ping_s,
                is_let_in=approved,
            )
            self.bridge.start()

    def hear(self, standing: Standing) -> None:
        """What the tracker says, with each of its answers."""
        self._standing = standing
        self._book.set_keys(standing.ticket_keys)
        self._follow()

    def news(self) -> Mapping[str, Any]:
        """What the tracker is told of it; nothing before it is loaded."""
        if self._engine is None or self._api is None:
            return {}
        self._engine.look_at_pace()  # told with the next news
        pace = {} if self.ms_per_layer is None else {"ms_per_layer": self.ms_per_layer}
        return {**self._engine.occupancy().as_dict(), **pace, "session_epochs": self._api.session_epochs()}

    @property
    def ms_per_layer(self) -> float | None:
        """Of one token, once it was measured."""
        pace = self._engine.ms_per_layer if self._engine else None
        return None if pace is None else round(pace, 3)

    @property
    def is_idle(self) -> bool:
        """No session holds anything here, and none is headed here."""
        return (self._engine is None or not self._engine.num_sessions) and (self._api is None or self._api.is_idle)

    def forget_sessions(self) -> None:
        """After sleep: what its sessions hold is of no use to anybody, and what it was connected to may be gone."""
        if self._api:
            self._api.end_chats("this node has slept")
        if self._engine:
            self._engine.drop_caches()
        if self.bridge:
            self.bridge.renew()

    def drain(self) -> None:
        """Ends what runs here after the step in hand; every asker gets an answer."""
        deadline = Deadline.after(DRAIN_DEADLINE_S)
        if self._api:
            self._api.drain(deadline)
        if self._engine:
            self._engine.stop(deadline.left_s())
        if self.bridge:
            self.bridge.stop(Deadline.after(CLOSE_DEADLINE_S))

    def _follow(self) -> None:
        standing = self._standing
        if standing.duty != self._duty:
            logger.info("The site has this node %s", _DUTIES.get(standing.duty, standing.duty))
            self._duty = standing.duty
        if self._api is None:
            return
        self._api.refuse_chats(DRAINED if standing.duty == "draining" else None)
        for session, epoch in standing.closed.items():
            self._api.close(session, epoch)
        for session in standing.move:
            self._api.move(session)

    def _tokenizer(self) -> Tokenizer | None:
        """The head's, and the tail's, which holds answers to a form by it and does without otherwise. Raises
        ModelError."""
        start, end = self._registration.start_layer, self._registration.end_layer
        if start > 0 and end < self._folder.num_layers:
            return None
        try:
            return Tokenizer.load(self._folder, self._options.tokenizer)
        except ModelError as error:
            if start == 0:
                raise
            logger.warning("Without a tokenizer this node ends no chat whose answer is of a given form: %s", error)
            return None

    def _head(self, engine: Engine, tokenizer: Tokenizer, grammars: Grammars | None) -> Head:
        options, registration, shard = self._options, self._registration, engine.shard
        url, key = registration.relay_url, registration.node_key
        dialler = Dialler(url, key, self._tls, self._tunnel, options.prefer, options.patience_s)
        return Head(
            registration.peer_id,
            shard.width,
            shard.context_length,
            engine,
            tokenizer,
            dialler,
            shard.vocab_size,
            options.max_drafts,
            TrackerRerouter(options.tracker_url, key, self._tls),
            grammars,
            Budget(options.kept_mb * 1_000_000),
        )


_DUTIES = {
    "works": "work again",
    "paused": "paused: new sessions go elsewhere",
    "draining": "drained: new sessions go elsewhere, and those that run move away",
}


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


def _measure_pace(engine: Engine) -> None:
    """Also warms up the layers: the first chat doesn't find them cold."""
    try:
        ms_per_layer = engine.measure_pace().result(PACE_DEADLINE_S)
    except NotNumbers as error:
        raise ModelError(f"{error}: their weights are damaged; get the model's files anew") from None
    except Exception as error:  # a node that is slow, or whose layers fail, says so when it is asked to work
        logger.warning("The time of a layer couldn't be measured: %r", error)
    else:
        logger.info("One token takes %.2f ms in each layer", ms_per_layer)


def _layers(shard: Shard) -> Layers:
    return Layers(
        start_layer=shard.start_layer,
        end_layer=shard.end_layer,
        num_layers=shard.num_layers,
        width=shard.width,
        vocab_size=shard.vocab_size,
        context_length=shard.context_length,
    )
