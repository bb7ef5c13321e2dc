from tracker.models.accounts import Contribution, Usage
from tracker.models.keys import ApiKey, JoinToken, TicketKey
from tracker.models.languages import LanguageModel
from tracker.models.leases import Lease
from tracker.models.nodes import Node, Shard
from tracker.models.sessions import ChatSession, Failover, SessionHop

__all__ = [
    "ApiKey",
    "ChatSession",
    "Contribution",
    "Failover",
    "JoinToken",
    "LanguageModel",
    "Lease",
    "Node",
    "SessionHop",
    "Shard",
    "TicketKey",
    "Usage",
]
