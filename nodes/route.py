"""The hops of a session, now and before: what stays when its route changes, and where it is freed at the end."""

from __future__ import annotations

from nodes.downstream import DownstreamHop
from nodes.forwarding import Session


class Route:
    """After this node, whose own layers are `local`. Used by one thread."""

    def __init__(self, session: Session, local: tuple[int, int], hops: list[DownstreamHop]) -> None:
        self.session, self.local, self.hops = session, local, hops
        self._left: list[tuple[DownstreamHop, Session]] = []  # hops of before, and what they were asked under

    def switch(self, session: Session, local: tuple[int, int], hops: list[DownstreamHop]) -> None:
        """The one of another epoch. Hops of the same node and layers go on with what they hold."""
        known = {(hop.hop.peer_id, hop.layers): hop for hop in self.hops}
        taken = [_taken_over(known.get((hop.hop.peer_id, hop.layers)), hop) for hop in hops]
        self._left += [(hop, self.session) for hop in self.hops if hop not in taken]
        self.session, self.local, self.hops = session, local, taken

    def num_held(self, position: int) -> int:
        """Of the tokens before `position`, how many every hop holds: from there they must go through the route."""
        return min([position, *(hop.num_held for hop in self.hops)])

    def left(self) -> list[tuple[DownstreamHop, int]]:
        """Hops of before, each with the last epoch in which it was on the route. One that is reached
        another way now goes on with the same statistics: it isn't left."""
        here = {id(hop.statistics) for hop in self.hops}
        last = {id(hop.statistics): (hop, session.epoch) for hop, session in self._left}
        return [left for statistics, left in last.items() if statistics not in here]

    def release(self) -> None:
        """Frees the session on every hop: where it is now, and then where it has been."""
        for hop in self.hops:
            hop.release(self.session.id, self.session.headers())
        here = {hop.hop.peer_id for hop in self.hops}
        for hop, session in self._left:
            if hop.hop.peer_id in here:
                hop.close()
            else:
                hop.release(session.id, session.headers())

    def close(self) -> None:
        """Closes the connections to the hops and leaves what they hold to whoever owns the session now."""
        for hop in [*self.hops, *(hop for hop, _ in self._left)]:
            hop.close()


def _taken_over(known: DownstreamHop | None, hop: DownstreamHop) -> DownstreamHop:
    """The hop of an earlier route if it can be reached as this one says; else this one, which holds as much."""
    if known is None:
        return hop
    if known.hop == hop.hop and not known.is_lost:
        return known
    hop.num_held, hop.statistics = known.num_held, known.statistics
    hop.knows_grammar = known.knows_grammar
    return hop
