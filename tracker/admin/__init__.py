"""The operator's tables: who may join, who works, who may ask, what became of it, and who did what here."""

from tracker.admin import accounts, audit, keys, languages, moves, nodes, sessions, users

__all__ = ["accounts", "audit", "keys", "languages", "moves", "nodes", "sessions", "users"]
