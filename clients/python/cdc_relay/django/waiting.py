"""outbox_context: a transaction that waits after COMMIT until a relay has published what was written in it."""
import logging
import time
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from django.db import Error, connections, transaction
from django.db.models.signals import post_save

from ..celery import _django_alias, created
from .models import NAME, OutboxMessage
from .tables import quoted

logger = logging.getLogger("cdc_relay.waiting")
# By database: whether to wait for a message, and the outcomes by message_id.
_contexts = ContextVar("cdc_relay.outbox_context", default={})


@contextmanager
def outbox_context(flush=None, *, using=None, timeout=5):
    """transaction.atomic(), and after its COMMIT a wait of at most `timeout` seconds for the messages that were written in it.

    It gives a dict, which then has "published", "waiting" or "dead: …" for each message_id, as text. In a nested context, flush
    decides about its own messages (default: as around it), and the outermost context waits.
    """
    alias, contexts = _django_alias(using), _contexts.get()
    around, outcomes = contexts.get(alias) or (True, {})
    token = _contexts.set({**contexts, alias: (around if flush is None else flush, outcomes)})
    try:
        with transaction.atomic(alias):
            yield outcomes
            if alias not in contexts:  # registered last, so all messages are known
                transaction.on_commit(partial(_wait, alias, outcomes, timeout), alias)
    finally:
        _contexts.reset(token)


def _wait(alias, outcomes, timeout):
    connection, deadline = connections[alias], time.monotonic() + timeout
    if connection.in_atomic_block:  # of a test
        return
    try:
        with connection.cursor() as cursor:
            for message_id in outcomes:
                left = max(deadline - time.monotonic(), 0)
                cursor.execute(f"SELECT {quoted(NAME, '_await')}(%s, %s * interval '1 second')", [message_id, left])
                (outcomes[message_id],) = cursor.fetchone()
                if not left:
                    break
    except Error as error:
        logger.warning("cannot wait for messages, which the relay publishes all the same: %s", error)


def _wait_for(message_id, alias):
    flush, outcomes = _contexts.get().get(alias) or (False, None)
    if flush:  # on_commit forgets it if its savepoint is rolled back
        transaction.on_commit(partial(outcomes.__setitem__, str(message_id), "waiting"), alias)


@created.connect
def _task_sent(message_id, using, **_):
    _wait_for(message_id, using)


def _message_saved(instance, created, using, **_):
    if created:
        _wait_for(instance.pk, using)


post_save.connect(_message_saved, sender=OutboxMessage)
