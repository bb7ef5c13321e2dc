"""Which layers a node is to have, as its tracker says it.

With heartbeats it says which to take as soon as no session is left, with a registration which to have at once. Used by
the thread that asks the tracker and the one that serves; neither waits for the other.
"""

from __future__ import annotations

from nodes.registration import Place, Registration

Layers = tuple[int, int]


class Places:
    """What was said and isn't done."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._other: Registration | None = None

    def hear(self, place: Place | None) -> None:
        """With each answer of the tracker, which repeats it, or takes it back."""
        self._place = place

    def registered(self, registration: Registration, served: Layers | None) -> None:
        """The tracker believes from now on that these layers are here, whatever is served."""
        if served is not None and registration.layers != served:
            self._other = registration

    @property
    def is_believed_elsewhere(self) -> bool:
        """Nobody asks for the layers that are served: the tracker takes others for them."""
        return self._other is not None

    def calls_away(self, served: Layers, *, is_idle: bool) -> bool:
        """Whether it is time to leave the layers that are served: at once, or when no session is left on them."""
        place = self._place
        wants_others = place is not None and (place.start_layer, place.end_layer) != served
        return self.is_believed_elsewhere or (wants_others and is_idle)

    def take(self) -> tuple[Place | None, Registration | None]:
        """What is to be done now: a move to register for, or a registration that was made already. Once."""
        place, other = self._place, self._other
        self._place = self._other = None
        return place, None if place else other
