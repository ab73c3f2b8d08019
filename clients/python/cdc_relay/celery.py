"""install(app): Celery tasks become rows of the outbox, in the caller's transaction."""
import hashlib
import json
import sys
import uuid
import warnings
from contextlib import closing
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Callable, Iterable, Mapping, Optional, Tuple, Union

from celery import Celery, current_task
from celery.exceptions import ImproperlyConfigured
from celery.signals import beat_init
from celery.utils.dispatch import Signal
from kombu import Exchange
from kombu.common import Broadcast
from kombu.compression import compress
from kombu.serialization import dumps

from .headers import add_context, check_names, jsonb
from .redaction import Redaction

# The properties of contract.md; Celery's other options concern its own connection.
PROPERTIES = ("correlation_id", "reply_to", "type", "user_id", "app_id", "priority", "delivery_mode")
DELIVERY_MODES = {"transient": 1, 1: 1}
# Options of apply_async that are columns of the row. They travel in the header COLUMNS, for the task's retries.
COLUMNS = "cdc_relay_columns"
OF_ROW = {"ordering_key": str, "coalesce_key": str, "max_attempts": int}
# Celery 5.5 with quorum queues lets the broker delay a message that is sent to this exchange.
NATIVE_DELAY = "celery_delayed_27"

#: Sent after the INSERT: sender is the task's name; task_id, message_id, headers; using is the database of Django, or None.
created = Signal(name="created", providing_args={"task_id", "message_id", "headers", "using"})


class OutsideTransactionWarning(UserWarning):
    """A task was sent outside a transaction. It is committed at once and sent, even if the caller fails later."""


def install(
    app: Celery,
    *,
    execute: Optional[Callable[[str, list], object]] = None,
    execute_apart: Optional[Callable[[str, list], object]] = None,
    in_transaction: Optional[Callable[[], bool]] = None,
    using: Union[str, Callable[[], str], None] = None,
    table: Optional[str] = None,
    exclude: Iterable[str] = (),
    context: Iterable[str] = (),
    redact: Union[Callable[[str, list, dict], Tuple[list, dict]], Mapping[str, Iterable[str]], None] = None,
) -> Celery:
    """Writes every task that this app sends to the outbox.

    Without `execute`, rows go through the Django connection `using`: an alias, a function that returns one for each row, or else
    the database that DATABASE_ROUTERS choose for OutboxMessage. Otherwise execute(sql, parameters) runs a statement with
    %s for parameters in the current transaction, in_transaction() tells whether there is one, and execute_apart(sql, parameters)
    runs a statement in a transaction of its own, on another connection.
    Tasks that match `exclude` ("audit.*") go to the broker directly. `context` lists names of structlog's context
    variables and of OpenTelemetry's headers (traceparent, tracestate, baggage) to send along as headers; "*" sends all.
    `redact` hides arguments from people and tools: redact(task_name, args, kwargs) returns the (args, kwargs) to show, or it maps
    patterns of task names to names of arguments: {"shop.pay": ["card"]}.
    """
    if isinstance(exclude, str) or isinstance(context, str) and context != "*":
        raise TypeError("exclude and context are lists of names, not a string")
    given = [execute, execute_apart, in_transaction]
    if any(given) and not all(given):
        raise TypeError("without Django, execute, execute_apart and in_transaction are needed: a retry in a transaction rolls it back")
    if execute and using:
        raise TypeError("using names a database of Django: it does not go with execute")
    exclude, context = tuple(exclude), tuple(context)
    check_names(context)
    redaction = Redaction(app, redact) if redact is not None else None
    outside = _Database(table or "outbox", execute, execute_apart, in_transaction) if execute else None
    send_directly, is_beat = None, False

    def send_task_message(producer, name, message, **options):
        nonlocal send_directly
        if send_directly is None:  # not earlier: it reads the configuration
            send_directly = app.amqp._create_task_sender()
        columns = {key: OF_ROW[key](options[key]) for key in OF_ROW if options.get(key) is not None}
        options = {key: value for key, value in options.items() if key not in OF_ROW}
        excluded = any(fnmatchcase(name, pattern) for pattern in exclude)
        if excluded and columns:
            raise ValueError(f"task {name}: {', '.join(columns)} needs the outbox, and exclude sends the task to the broker directly")
        if not message.headers and not (excluded and redaction is None):
            raise ImproperlyConfigured("cdc_relay needs Celery's message protocol 2: remove the setting task_protocol = 1")
        redacted_payload = redaction.apply(name, message, options) if redaction else None
        if excluded:
            return send_directly(producer, name, message, **options)
        database = outside or _DjangoDatabase(table, using)
        if not current_task and not is_beat and not database.in_transaction():
            text = f"task {name} was sent outside a transaction: it is sent even if the caller fails later{database.hint()}"
            warnings.warn(text, OutsideTransactionWarning, stacklevel=_level_of_caller())
        apart, by_chord = _continues_current_task(name, message)
        if by_chord and type(app.backend).__module__.startswith("django_celery_results.") and database.in_transaction():
            raise RuntimeError("call self.replace outside the transaction: its exception rolls that back, with the chord's row of django-celery-results")
        # Celery itself chooses the queue and calls the signals. It publishes to _Row instead of a connection.
        if current_task and message.headers["id"] == current_task.request.id:
            columns = {**(current_task.request.get(COLUMNS) or {}), **columns}
        if columns:
            message.headers[COLUMNS] = columns
        row = _Row(name, database, context, {**columns, "redacted_payload": redacted_payload}, apart)
        return send_directly(row, name, message._replace(sent_event=None), **{**options, "retry": False})

    def beat_without_connection(sender, **_):
        nonlocal is_beat
        if sender.app is app:
            is_beat = True
            sender.scheduler.producer = None  # else beat waits for the broker before it sends

    app.amqp.send_task_message = send_task_message
    app.cdc_relay = {  # for Django's system checks
        "in_django": not execute, "using": using, "table": table,
        "exclude": exclude, "context": context, "redaction": redaction,
    }  # fmt: skip
    if not execute:
        from django.core import checks

        checks.register(_check_installed_apps)
    beat_init.connect(beat_without_connection, weak=False)
    return app


def queues_of(app):
    """The queues of task_queues, or else the default queue, and those of task_routes, except of functions."""
    queues = app.amqp.queues
    for routes in app.amqp.routes:
        for route in {**getattr(routes, "map", {}), **getattr(routes, "patterns", {})}.values():
            queue = route.get("queue") if isinstance(route, Mapping) else route
            if isinstance(queue, str):
                queues[queue]  # makes it, as for a task
            elif queue is not None:
                queues.add(queue)
    return list(queues.values())


def shared_part(queue):
    """What is declared for a queue. Each worker has its own queue for a Broadcast. One without a consumer would fill."""
    return queue.exchange if isinstance(queue, Broadcast) else queue


def declare_queues(app: Celery) -> None:
    """Declares the queues of the settings task_queues, or else the default queue, and task_routes, with exchanges and bindings."""
    with app.connection_for_write() as connection:
        for queue in queues_of(app):
            shared_part(queue)(connection.default_channel).declare()


def is_declared(entity, connection):
    """Tells whether the broker has the exchange or queue. A look-up that it refuses is an error, and does not tell."""
    try:
        with connection.channel() as channel:
            entity(channel).declare(passive=True) if isinstance(entity, Exchange) else entity(channel).queue_declare(passive=True)
    except connection.channel_errors as error:
        if getattr(error, "code", None) != 404:
            raise
        return False
    return True


class _Row:
    """Receives what Celery publishes, and writes it to the outbox."""

    def __init__(self, name, database, context, columns, apart):
        self.name, self.database, self.context, self.columns, self.apart = name, database, context, columns, apart

    def publish(self, message_body, exchange, routing_key, serializer, compression, headers, **properties):
        content_type, content_encoding, body = dumps(message_body, serializer=serializer)
        if compression:
            body, headers["compression"] = compress(body.encode() if isinstance(body, str) else body, compression)
        add_context(headers, self.context)
        exchange, available_at = getattr(exchange, "name", exchange), None
        if exchange != NATIVE_DELAY:
            available_at, headers["eta"] = _time(headers.get("eta")), None  # it waits in the outbox, not in a worker
        expires_at = _time(headers.get("expires"))
        if expires_at and expires_at <= datetime.now(timezone.utc):
            available_at = expires_at = None  # a worker revokes it
        elif expires_at and available_at and expires_at <= available_at:
            expires_at = None
        is_text = isinstance(body, str) and content_type == "application/json" and _is_json(body)
        message_id = _message_id(headers)
        known = {key: properties[key] for key in PROPERTIES if properties.get(key) is not None}
        known["delivery_mode"] = DELIVERY_MODES.get(known.get("delivery_mode"), 2)
        if properties.get("expiration") is not None and not headers.get("expires"):  # else Celery has set it
            known["expiration"] = _milliseconds(properties["expiration"])
        self.database.insert(
            message_id=message_id,
            exchange=exchange,
            routing_key=routing_key,
            payload=body if is_text else None,
            payload_bytes=None if is_text else body.encode() if isinstance(body, str) else body,
            headers=jsonb("header", headers),
            properties=jsonb("property", {**known, "content_type": content_type, "content_encoding": content_encoding}),
            available_at=available_at,
            expires_at=expires_at,
            apart=self.apart,
            **self.columns,
        )
        using = getattr(self.database, "alias", None)
        created.send(sender=self.name, task_id=headers["id"], message_id=message_id, headers=headers, using=using)


class _Database:
    """Where rows go. Each of the functions is as in install."""

    def __init__(self, table, execute, execute_apart, in_transaction):
        self.table, self.execute, self.execute_apart, self.in_transaction = table, execute, execute_apart, in_transaction

    def insert(self, apart, **columns):
        """Inserts a row; `apart`: not in the current transaction."""
        names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
        execute = self.execute if self.in_transaction() and not apart else self.execute_apart
        execute(f"INSERT INTO {self.table} ({names}) VALUES ({places})", list(columns.values()))

    def hint(self):
        return ""


class _DjangoDatabase(_Database):
    """The database of one row: `using` may return another one for the next."""

    def __init__(self, table, using):
        from django.conf import settings
        from django.db import connections

        self.table, self.alias = table or getattr(settings, "CDC_RELAY_TABLE", "outbox"), _django_alias(using)
        self.connection = connections[self.alias]

    def execute(self, sql, parameters):
        from .django.tables import explained

        connection = self.connection
        # Django itself replaces a broken connection only between requests. Within a transaction the task must fail with it.
        if connection.connection is not None and connection.get_autocommit() and not connection.is_usable():
            connection.close()
        with explained(connection, self.table), connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def execute_apart(self, sql, parameters):
        from .django.tables import explained

        if self.connection.get_autocommit():
            return self.execute(sql, parameters)
        with closing(self.connection.copy()) as connection, explained(connection, self.table), connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def in_transaction(self):
        return not self.connection.get_autocommit()

    def hint(self):
        """Names the databases that are in a transaction instead of this one."""
        from django.db import connections

        others = [c.alias for c in connections.all() if c.connection is not None and not c.get_autocommit()]
        return f". A transaction is open on {' and '.join(map(repr, others))}, but the outbox is on {self.alias!r}" if others else ""


def _check_installed_apps(app_configs, **kwargs):
    """A system check, registered here because the others are those of the app that may be missing."""
    from django.apps import apps
    from django.core import checks

    if apps.is_installed("cdc_relay.django"):
        return []
    hint = 'Add "cdc_relay.django.apps.CDCRelayConfig" to it. Without, cdc_relay has no checks, models and admin.'
    return [checks.Warning("cdc_relay.install is called, but INSTALLED_APPS lacks the app.", hint=hint, id="cdc_relay.W007")]


def _django_alias(using):
    from django.apps import apps
    from django.db import DEFAULT_DB_ALIAS, router

    if using:
        return using() if callable(using) else using
    if not apps.ready or not apps.is_installed("cdc_relay.django"):
        return DEFAULT_DB_ALIAS
    from .django.models import OutboxMessage

    return router.db_for_write(OutboxMessage)


def _is_json(text):
    """Tells whether it is JSON by the standard: Python also writes NaN and Infinity."""
    numbers = []
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=numbers.append)
    return not numbers


def _continues_current_task(name, message):
    """Tells whether it is a retry of the running task or its replacement, and whether it is so as part of a chord.

    Then the running task's id is that of the message, or of a later task: in its chain, or after the chord. Celery raises
    an exception after it has sent those, and that rolls back the task's transaction.
    """
    if not current_task:
        return False, False
    args, _, later = message.body
    direct = [message.headers["id"], *(task["options"].get("task_id") for task in later["chain"] or ())]
    # celery.chord_unlock waits for a chord, and sends the task in its arguments.
    nested = _task_ids([later, args] if name == "celery.chord_unlock" else later)
    by_chord = current_task.request.id not in direct and current_task.request.id in nested
    return current_task.request.id in direct or by_chord, by_chord


def _task_ids(value):
    """The ids in signatures of tasks, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("options"), dict):
            yield value["options"].get("task_id")
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _task_ids(inner)


def _level_of_caller():
    """The stacklevel, for a warning of the function that calls this, of the code that called Celery."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("celery", "cdc_relay"):
        frame, level = frame.f_back, level + 1
    return level


def beginning(task_id):
    """The UUID that a task's first message has as message_id. Those of its later messages begin with the same 12 bytes."""
    try:
        return uuid.UUID(str(task_id))
    except ValueError:  # the application chose another form of id
        return uuid.UUID(bytes=hashlib.md5(str(task_id).encode()).digest())


def _message_id(headers):
    """An index finds all messages of a task, because their ids begin alike. Consumers still tell them apart."""
    first = beginning(headers["id"])
    if str(first) == str(headers["id"]).lower() and not headers.get("retries") and not headers.get("replaced_task_nesting"):
        return str(first)
    return str(uuid.UUID(bytes=first.bytes[:12] + uuid.uuid4().bytes[12:]))


def _time(text):
    if not text:
        return None
    time = text if isinstance(text, datetime) else datetime.fromisoformat(text.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _milliseconds(seconds):
    """kombu's `expiration` as a property of AMQP."""
    expiration = int(float(seconds) * 1000)
    if not 0 <= expiration < 2**32:
        raise ValueError(f"expiration: {seconds} seconds are not from 0 to 49 days")
    return expiration
