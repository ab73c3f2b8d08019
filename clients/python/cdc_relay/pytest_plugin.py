"""Fixtures for pytest-django: they read from the outbox what a test has sent, inside the test's transaction."""
import json

import pytest
from celery import current_app
from celery.canvas import maybe_signature


class Sent:
    """A message of the outbox. A Celery task has task, task_id, args, kwargs and embed."""

    def __init__(self, columns):
        self.__dict__.update(columns)
        self.headers = _load(self.headers) or {}
        self.properties = _load(self.properties) or {}
        self.payload = _load(self.payload)
        self.task, self.task_id = self.headers.get("task"), self.headers.get("id")
        if self.task and self.payload is not None:
            self.args, self.kwargs, self.embed = self.payload

    def __repr__(self):
        return f"<{self.task or self.routing_key} {self.payload!r}>"


class Outbox:
    def __init__(self, connection, table):
        self.connection, self.table = connection, table

    def messages(self):
        return self.fetch(f"SELECT * FROM {self.table} ORDER BY id")

    def __iter__(self):
        return iter(self.messages())

    def __len__(self):
        return len(self.messages())

    def __getitem__(self, index):
        return self.messages()[index]

    def take(self):
        """Removes the oldest message and returns it, or None if there is none."""
        taken = self.fetch(f"DELETE FROM {self.table} WHERE id = (SELECT min(id) FROM {self.table}) RETURNING *")
        return taken[0] if taken else None

    def fetch(self, sql):
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description]
            return [Sent(dict(zip(names, row))) for row in cursor.fetchall()]


def _load(value):
    return json.loads(value) if isinstance(value, str) else value


@pytest.fixture
def outbox(db):
    """The messages that this test has sent, oldest first."""
    from django.db import connections, router

    from cdc_relay.django.models import OutboxMessage

    return Outbox(connections[router.db_for_write(OutboxMessage)], OutboxMessage._meta.db_table)


@pytest.fixture
def assert_sent(outbox):
    """assert_sent("orders.created", payload={...}, ordering_key="o1") returns the one message that matches."""

    def check(routing_key, **columns):
        return _one(outbox, {"routing_key": routing_key, **columns})

    return check


@pytest.fixture
def assert_task_sent(outbox):
    """assert_task_sent("shop.tasks.pay", args=[42], kwargs={}, routing_key="mail") returns the one task that matches."""

    def check(task, **columns):
        name = getattr(task, "name", task)
        columns = {key: list(value) if isinstance(value, tuple) else value for key, value in columns.items()}
        return _one(outbox, {"task": name, **columns})

    return check


def _one(outbox, wanted):
    sent = outbox.messages()
    missing = object()
    found = [m for m in sent if all(getattr(m, key, missing) == value for key, value in wanted.items())]
    assert len(found) == 1, f"{len(found)} messages with {wanted}, want 1; sent: {sent}"
    return found[0]


@pytest.fixture
def drain_outbox(outbox):
    """drain_outbox() removes all messages and runs their tasks here, and the tasks that these send.

    It returns the messages, and does not wait for scheduled times. The body of a chord does not run: it needs a result
    backend.
    """

    def drain(run_tasks=True):
        drained = []
        while message := outbox.take():
            drained.append(message)
            if run_tasks and message.task:
                _run(message)
        return drained

    return drain


def _run(message):
    app = current_app._get_current_object()
    embed = message.embed
    result = app.tasks[message.task].apply(
        message.args, message.kwargs, task_id=message.task_id, throw=True,
        link=[maybe_signature(s, app=app) for s in embed.get("callbacks") or ()],
        link_error=[maybe_signature(s, app=app) for s in embed.get("errbacks") or ()],
    )  # fmt: skip
    if chain := embed.get("chain"):
        following = maybe_signature(chain.pop(), app=app)
        following.apply_async((result.get(),), chain=chain)
