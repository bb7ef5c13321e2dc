from tracker.models.keys import ApiKey, JoinToken, TicketKey
from tracker.models.languages import LanguageModel
from tracker.models.nodes import Node, Shard
from tracker.models.sessions import ChatSession, SessionHop

__all__ = ["ApiKey", "ChatSession", "JoinToken", "LanguageModel", "Node", "SessionHop", "Shard", "TicketKey"]
