"""Fixtures for pytest-django: they read from the outbox what a test has sent, inside the test's transaction."""
import json
import sys
from contextlib import suppress
from datetime import datetime, timezone

import pytest
from celery import current_app
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.backends.base import DisabledBackend
from celery.backends.cache import CacheBackend
from celery.exceptions import TimeoutError
from celery.states import FAILURE, READY_STATES
from celery.utils.functional import LRUCache
from kombu.compression import decompress
from kombu.serialization import loads

from .celery import _DjangoDatabase, _time

ATTEMPTS = 6  # with the relay's default --max-retries


def pytest_sessionstart():
    """With the TEST_RUNNER of cdc_relay.django.runner, test databases of pytest-django have the outbox, too."""
    conf = sys.modules.get("django.conf")
    if conf and conf.settings.configured:
        from django.test.utils import get_runner

        with suppress(ImportError, AttributeError):  # another one, which pytest does not need
            get_runner(conf.settings).create_outboxes()


class Sent:
    """A message of the outbox. A Celery task has task, task_id, args, kwargs and embed."""

    def __init__(self, columns):
        self.__dict__.update(columns)
        self.headers = _load(self.headers) or {}
        self.properties = _load(self.properties) or {}
        self.payload = _load(self.payload)
        self.task = self.task_id = self.args = self.kwargs = self.embed = None
        if isinstance(self.headers, dict) and isinstance(self.properties, dict) and {"task", "id"} <= self.headers.keys():
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
    def __init__(self, connection, table, dead_letters):
        self.connection, self.table, self.dead_letters = connection, table, dead_letters
        self.rejections = []

    def messages(self):
        return [Sent(row) for row in self.rows(f"SELECT * FROM {self.table} ORDER BY id")]

    def __iter__(self):
        return iter(self.messages())

    def __len__(self):
        return len(self.messages())

    def __getitem__(self, index):
        return self.messages()[index]

    def clear(self):
        self.rows(f"DELETE FROM {self.table}")

    def reject(self, wanted, times=1):
        """Lets drain_outbox reject messages of this task or routing key, `times` times in all, as RabbitMQ may reject them.

        As in a relay, a rejection costs an attempt and sets last_error. With the last attempt, max_attempts of the row or else
        6, the message becomes a dead letter. Retries come at once.
        """
        self.rejections += [getattr(wanted, "name", wanted)] * times

    def take(self):
        """Removes and returns the oldest message that is not rejected, or None if there is none."""
        while rows := self.rows(f"SELECT * FROM {self.table} ORDER BY id LIMIT 1"):
            message = Sent(rows[0])
            rejected = {message.task, message.routing_key}.intersection(self.rejections)
            if not rejected:
                self.rows(f"DELETE FROM {self.table} WHERE id = {message.id}")
                return message
            self.rejections.remove(rejected.pop())
            self.fail(message)

    def fail(self, message):
        self.rows(f"UPDATE {self.table} SET attempts = attempts + 1, last_error = 'unroutable: rejected by the test' WHERE id = {message.id}")
        limit = ATTEMPTS if message.max_attempts is None else message.max_attempts
        if limit and message.attempts + 1 >= limit:
            ours, dead = f"'{self.table}'::regclass", f"'{self.dead_letters}'::regclass"
            sql = f"SELECT quote_ident(attname) AS name FROM pg_attribute WHERE attrelid IN ({ours}, {dead}) AND attnum > 0 AND NOT attisdropped"
            columns = ", ".join(row["name"] for row in self.rows(f"{sql} GROUP BY attname HAVING count(*) = 2"))
            self.rows(
                f"""WITH dead AS (DELETE FROM {self.table} WHERE id = {message.id} RETURNING *)
                INSERT INTO {self.dead_letters} ({columns}, failure_reason, dead_at)
                SELECT {columns}, 'retries_exhausted', clock_timestamp() FROM dead"""
            )

    def rows(self, sql):
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row)) for row in cursor.fetchall()] if names else []


def _load(value):
    return json.loads(value) if isinstance(value, str) else value


@pytest.fixture
def outbox(db):
    """The messages that this test has sent, oldest first. Those of earlier tests with transaction=True are removed."""
    from django.db import connections, router

    from cdc_relay.django.models import DeadLetter, OutboxMessage

    outbox = Outbox(connections[router.db_for_write(OutboxMessage)], OutboxMessage._meta.db_table, DeadLetter._meta.db_table)
    outbox.clear()
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
        return isinstance(actual, dict) and value.items() <= actual.items()
    return actual == (list(value) if isinstance(value, tuple) else value)


@pytest.fixture
def drain_outbox(outbox, monkeypatch):
    """drain_outbox() removes all messages and runs their tasks here, and the tasks that these send, also retries.

    It returns the messages. It does not wait for scheduled times and retries, and raises the exception of a task that
    fails, unless propagate=False. AsyncResult has the results, if the app has a result backend.
    """
    app = current_app._get_current_object()
    if not isinstance(app.backend, DisabledBackend):
        results, backend_of = _Results(app), type(app).backend.fget
        monkeypatch.setattr(type(app), "backend", property(lambda self: results if self is app else backend_of(self)))

    def drain(run_tasks=True, propagate=True, limit=1000):
        drained = []
        while message := outbox.take():
            drained.append(message)
            if len(drained) > limit:
                raise AssertionError(f"the tasks of this test send more than {limit} messages; the last is {message}")
            if run_tasks and message.task not in (None, "celery.chord_unlock"):
                _run(app, message, propagate)
        return drained

    return drain


class _Results(CacheBackend):
    """The results of one test, in memory."""

    supports_native_join = False  # it would wait for ever

    def __init__(self, app):
        super().__init__(app, backend="memory://")
        self.client.cache = LRUCache()

    def wait_for(self, task_id, *_, **__):
        meta = self.get_task_meta(task_id)
        if meta["status"] not in READY_STATES:
            raise TimeoutError(f"the task {task_id} is {meta['status']}: call drain_outbox() first")
        return meta


def _run(app, message, propagate):
    """Runs a task as a worker does. Celery stores the result, and sends the next tasks."""
    task = app.tasks[message.task]
    delivery = {"exchange": message.exchange, "routing_key": message.routing_key, "priority": message.properties.get("priority")}
    request = {
        **message.headers, **(message.embed or {}), "delivery_info": delivery, "is_eager": False,
        "reply_to": message.properties.get("reply_to"), "correlation_id": message.properties.get("correlation_id"),
    }  # fmt: skip
    expires = _time(message.headers.get("expires"))
    if expires and expires < datetime.now(timezone.utc):
        return app.backend.mark_as_revoked(message.task_id, "expired", Context(request))
    # A retry, which its exception would roll back, is sent after it, over this connection: others see no row of this test.
    with pytest.MonkeyPatch.context() as patch:
        apart = []
        patch.setattr(_DjangoDatabase, "execute_apart", lambda *statement: apart.append(statement))
        outcome = build_tracer(task.name, task, app=app)(message.task_id, message.args, message.kwargs, request)
    for database, sql, parameters in apart:
        database.execute(sql, parameters)
    if propagate and outcome.info and outcome.info.state == FAILURE:
        raise outcome.info.retval
