"""The life of a node process: opens its state, registers, loads its layers, serves until told to stop, leaves.

Where the tracker chooses the layers it may choose others later: once no session is left here, the node closes its
doors, gives back the memory, registers, and serves those. Where they can't be had it says why, and takes the former
ones again.
"""

from __future__ import annotations

import functools
import gc
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from nodes import memory
from nodes.completion import DEFAULT_MAX_TOKENS
from nodes.facts import check_budget, check_executor, node_facts, room_for_caches
from nodes.listening import Listening
from nodes.loading import Loading, Stopped
from nodes.membership import Membership
from nodes.options import NodeOptions, UsageError
from nodes.pace import estimate_ms_per_layer
from nodes.places import Places
from nodes.pruning import say_what_is_kept
from nodes.registration import FailedMove, NodeFacts, Place, Registration, Standing
from nodes.serving import CLOSE_DEADLINE_S, Serving
from nodes.sizes import read_elements
from nodes.sleep import SleepWatch, since_boot
from nodes.sockets import tls_context
from nodes.sources import model_name, opened_model
from nodes.state import NodeState
from nodes.tickets import TrackerClock
from nodes.tracker import Tracker
from nodes.weights import ModelError, ModelFolder

logger = logging.getLogger(__name__)

SIGNAL_S = 0.5
_CANT_BE_HELD = (ModelError, memory.DoesNotFit, UsageError, OSError, RuntimeError, MemoryError)


class Node:
    def __init__(
        self, options: NodeOptions, stopping: threading.Event, elapsed: Callable[[], float] = since_boot
    ) -> None:
        self._options, self._stopping, self._elapsed = options, stopping, elapsed
        self._clock = TrackerClock(elapsed)
        self._listening = Listening(options)
        self._loading = Loading(stopping)
        self._places = Places()
        self._max_cached_tokens: int | None = None
        self.serving: Serving | None = None

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
            self._listening.close(CLOSE_DEADLINE_S)
            tracker.close()
            state.close()

    def _run(self, state: NodeState, tracker: Tracker, tls: ssl.SSLContext) -> None:
        with opened_model(self._options.model, logger.info, self._loading.check) as folder:
            self._join(state, tracker, tls, folder)

    def _join(self, state: NodeState, tracker: Tracker, tls: ssl.SSLContext, folder: ModelFolder) -> None:
        options = self._options
        say_what_is_kept()
        check_executor(options, folder)
        if options.picks_layers:
            check_budget(options, folder)
        else:
            self._max_cached_tokens = room_for_caches(options, folder)
        self._listening.open()
        facts = node_facts(options, folder, self._listening.endpoint(), self._max_cached_tokens)
        if options.picks_layers:
            facts = replace(facts, ms_per_layer=_estimate(options, folder))
        membership = Membership(tracker, state, facts, options.join_token, self._stopping)
        membership.hear, membership.news, membership.registered = self._hear, self._news, self._registered
        registration = membership.join()
        if registration is None:
            return
        membership.start()
        try:
            self._serve_each(registration, membership, facts, folder, tls)
        except Stopped:
            logger.info("Told to stop while loading; what has arrived is kept")
        finally:
            logger.info("Stopping")
            membership.leave()
            if self.serving:
                self.serving.drain()
        if membership.failure:
            raise membership.failure

    def _serve_each(
        self,
        first: Registration,
        membership: Membership,
        facts: NodeFacts,
        folder: ModelFolder,
        tls: ssl.SSLContext,
    ) -> None:
        """One choice of layers after the other, as the tracker has them, until the node is told to stop."""
        registration: Registration | None = first
        place: Place | None = None  # which this registration was made for
        while registration is not None:
            failure = None
            try:
                self._serve(registration, membership, facts, folder, tls)
            except _CANT_BE_HELD as error:
                if place is None:
                    raise
                logger.error("The layers can't be served: %s; going back to the former ones", error)
                failure = FailedMove(place.move, str(error)[:300])
            if self._stopping.is_set():
                return
            facts = self._unloaded(facts)
            place, registration = self._places.take()
            if failure:
                place, registration = None, None
            if registration is None:
                facts = replace(facts, move=place.move if place else None, failed_move=failure)
                registration = membership.renewed(facts)

    def _serve(
        self,
        registration: Registration,
        membership: Membership,
        facts: NodeFacts,
        folder: ModelFolder,
        tls: ssl.SSLContext,
    ) -> None:
        """Until the node is told to stop, or to take other layers."""
        start, end = registration.layers
        options = replace(self._options, start_layer=start, end_layer=end)
        if registration.reason:
            logger.info("The site chose layers %d–%d: %s", start, end - 1, registration.reason)
        max_cached_tokens = self._room_for_caches(options, folder)
        self._loading = Loading(self._stopping)
        serving = Serving(options, registration, folder, self._clock, tls, max_cached_tokens, self._loading)
        self.serving = serving
        if self._options.picks_layers:
            membership.tell()  # how much room there is, now that it is known
        serving.load()
        if not self._wait(membership.approved):
            return
        serving.open(self._listening.server, membership.approved)
        if self._listening.server:
            membership.serving()
        if not self._wait_until_reachable(membership):
            return
        pace = serving.ms_per_layer or facts.ms_per_layer
        settled = replace(facts, move=None, failed_move=None, ms_per_layer=pace)
        membership.describe(settled)
        awake = functools.partial(self._begin_anew, membership, settled)
        watch = SleepWatch(self._options.sleep_gap_s, awake, self._elapsed)
        watch.start()
        logger.info("Caches: up to %d tokens of all chats together", max_cached_tokens)
        logger.info("Ready: layers %d–%d of %s", start, end - 1, model_name(self._options.model))
        membership.tell()
        while not self._stopping.wait(SIGNAL_S):
            if self._places.calls_away(serving.layers, is_idle=serving.is_idle):
                break
            # A signal that came while the process was stopped may wake another thread: this one must look.
        watch.stop()

    def _room_for_caches(self, options: NodeOptions, folder: ModelFolder) -> int:
        if self._options.picks_layers:
            self._max_cached_tokens = room_for_caches(options, folder)
        tokens = self._max_cached_tokens or 0
        if tokens < DEFAULT_MAX_TOKENS:
            logger.warning("Caches hold %d tokens: a chat that names no max_tokens won't fit", tokens)
        return tokens

    def _unloaded(self, facts: NodeFacts) -> NodeFacts:
        """Closes the doors and gives the memory back; what the node says of itself from then on."""
        serving, self.serving = self.serving, None
        self._listening.shut()
        if serving:
            logger.info("Leaving these layers")
            serving.drain()
            facts = replace(facts, ms_per_layer=serving.ms_per_layer or facts.ms_per_layer)
        del serving
        gc.collect()
        memory.give_back()
        return facts

    def _begin_anew(self, membership: Membership, facts: NodeFacts, gap_s: float) -> None:
        """Nobody counts on this node any more: it begins anew, from where it may be now."""
        logger.warning("This node slept for %.0f s: its caches are dropped, it connects and registers anew", gap_s)
        if self.serving:
            self.serving.forget_sessions()
        membership.renew(replace(facts, endpoint=self._listening.endpoint()))

    def _registered(self, registration: Registration) -> None:
        serving = self.serving
        self._places.registered(registration, serving.layers if serving else None)

    def _hear(self, standing: Standing) -> None:
        self._clock.set(standing.now)
        self._places.hear(standing.place)
        if serving := self.serving:
            serving.hear(standing)

    def _news(self) -> Mapping[str, Any]:
        serving = self.serving
        if news := serving.news() if serving else {}:
            return {"state": "stopping" if self._stopping.is_set() else "serving", **news}
        room = {} if self._max_cached_tokens is None else {"max_cached_tokens": self._max_cached_tokens}
        return {"state": "loading", **self._loading.news(), **room}

    def _wait_until_reachable(self, membership: Membership) -> bool:
        """On each way that was asked for; an endpoint beside the relay may turn out not to work."""
        bridge = self.serving.bridge if self.serving else None
        if bridge and not self._wait(bridge.connected):
            return False
        if not self._listening.server:
            return True
        return self._wait(membership.endpoint_tried if bridge else membership.endpoint_proved)

    def _wait(self, event: threading.Event) -> bool:
        """Until the event, or until the node is told to stop or to be elsewhere, which is False."""
        while not event.wait(0.2):
            if self._stopping.is_set() or self._places.is_believed_elsewhere:
                return False
        return not self._stopping.is_set()


def _estimate(options: NodeOptions, folder: ModelFolder) -> float:
    torch.set_num_threads(options.num_threads)
    layer_elements = read_elements(folder)
    ms_per_layer = estimate_ms_per_layer(folder.hidden_size, layer_elements, options.dtype, options.weights)
    logger.info("One token will take about %.2f ms in each layer", ms_per_layer)
    return round(ms_per_layer, 3)


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return tls_context(ca_file)
    except OSError as error:  # an SSLError is one
        raise UsageError(f"--ca-file {ca_file} can't be used: {error.strerror or error}") from None
