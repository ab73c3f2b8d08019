"""Fixtures for pytest-django: they read from the outbox what a test has sent, inside the test's transaction."""
import json

import pytest
from celery import current_app
from celery.canvas import maybe_signature
from kombu.compression import decompress
from kombu.serialization import loads


class Sent:
    """A message of the outbox. A Celery task has task, task_id, args, kwargs and embed."""

    def __init__(self, columns):
        self.__dict__.update(columns)
        self.headers = _load(self.headers) or {}
        self.properties = _load(self.properties) or {}
        self.payload = _load(self.payload)
        self.task = self.task_id = self.args = self.kwargs = self.embed = None
        if "task" in self.headers and "id" in self.headers:
            self.task, self.task_id = self.headers["task"], self.headers["id"]
            self.args, self.kwargs, self.embed = self.decoded(columns)

    def decoded(self, columns):
        """The body of a task as a worker decodes it, of all serializers."""
        body = columns["payload"] if self.payload_bytes is None else bytes(self.payload_bytes)
        if "compression" in self.headers:
            body = decompress(body, self.headers["compression"])
        body = body if isinstance(body, (str, bytes)) else json.dumps(body)  # psycopg2 parses json
        content_type = self.properties["content_type"]
        args, kwargs, embed = loads(body, content_type, self.properties["content_encoding"], accept={content_type})
        return list(args), kwargs, embed

    def __repr__(self):
        if not self.task:
            return f"<{self.routing_key} {self.payload!r}>"
        arguments = [repr(a) for a in self.args] + [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"<{self.task}({', '.join(arguments)})>"


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
    """The messages that this test has sent, oldest first. Those of earlier tests with transaction=True are removed."""
    from django.db import connections, router

    from cdc_relay.django.models import OutboxMessage

    outbox = Outbox(connections[router.db_for_write(OutboxMessage)], OutboxMessage._meta.db_table)
    outbox.fetch(f"DELETE FROM {outbox.table} RETURNING *")
    return outbox


@pytest.fixture
def assert_sent(outbox):
    """assert_sent("orders.created", payload={...}, ordering_key="o1") returns the one message that matches.

    Of `headers` and `properties` it compares only the given keys.
    """

    def check(routing_key, **columns):
        return _one(outbox, {"routing_key": routing_key, **columns})

    return check


@pytest.fixture
def assert_task_sent(outbox):
    """assert_task_sent("shop.tasks.pay", args=[42], kwargs={}, routing_key="mail") returns the one task that matches.

    Of `headers` and `properties` it compares only the given keys: properties={"priority": 9}.
    """

    def check(task, **columns):
        return _one(outbox, {"task": getattr(task, "name", task), **columns})

    return check


def _one(outbox, wanted):
    sent = outbox.messages()
    found = [message for message in sent if all(_matches(message, name, value) for name, value in wanted.items())]
    assert len(found) == 1, f"{len(found)} messages with {wanted}, want 1; sent: {sent}"
    return found[0]


def _matches(message, name, value):
    if not hasattr(message, name):
        names = ", ".join(sorted(vars(message)))
        raise TypeError(f"a message has no {name!r}, only: {names}")
    actual = getattr(message, name)
    if name in ("headers", "properties"):
        return all(key in actual and actual[key] == wanted for key, wanted in value.items())
    return actual == (list(value) if isinstance(value, tuple) else value)


@pytest.fixture
def drain_outbox(outbox):
    """drain_outbox() removes all messages and runs their tasks here, and the tasks that these send.

    It returns the messages. It does not wait for scheduled times and retries, and raises the exception of a task that
    fails. The body of a chord does not run.
    """

    def drain(run_tasks=True):
        drained = []
        while message := outbox.take():
            drained.append(message)
            if run_tasks and message.task not in (None, "celery.chord_unlock"):
                _run(message)
        return drained

    return drain


def _run(message):
    app, embed = current_app._get_current_object(), message.embed
    value = app.tasks[message.task].apply(
        message.args, message.kwargs, task_id=message.task_id, throw=False,  # else a retry is an error
        link=[maybe_signature(s, app=app) for s in embed.get("callbacks") or ()],
        link_error=[maybe_signature(s, app=app) for s in embed.get("errbacks") or ()],
    ).get()  # fmt: skip
    if chain := embed.get("chain"):
        maybe_signature(chain.pop(), app=app).apply_async((value,), chain=chain)
