from tracker.models.accounts import Contribution, Usage
from tracker.models.audit import AuditEntry
from tracker.models.keys import ApiKey, JoinToken, TicketKey
from tracker.models.languages import LanguageModel, RefusedFingerprint
from tracker.models.leases import Lease
from tracker.models.moves import Move
from tracker.models.nodes import Node, Shard
from tracker.models.samples import NodeSample
from tracker.models.sessions import ChatSession, Failover, SessionHop, SessionSteps

__all__ = [
    "ApiKey",
    "AuditEntry",
    "ChatSession",
    "Contribution",
    "Failover",
    "JoinToken",
    "LanguageModel",
    "Lease",
    "Move",
    "Node",
    "NodeSample",
    "RefusedFingerprint",
    "SessionHop",
    "SessionSteps",
    "Shard",
    "TicketKey",
    "Usage",
]
