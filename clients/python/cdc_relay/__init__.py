"""Celery tasks and messages through the transactional outbox of cdc-relay."""
from .celery import OutsideTransactionWarning, created, declare_queues, install

__all__ = ["OutsideTransactionWarning", "created", "declare_queues", "install"]
