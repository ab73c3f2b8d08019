"""System checks. Those of the database run with `manage.py check --database NAME` and `manage.py migrate`, the others always."""
import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.util import find_spec

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import DatabaseError, connections, router

from ..celery import is_declared, queues_of, shared_part
from ..redaction import import_tasks
from .models import DEAD_LETTER_TABLE, NAME, OutboxMessage
from .tables import command, find, grant_command, missing_grants, parts

SETTINGS = ("CDC_RELAY_BROKER_URL", "CDC_RELAY_SHOW_PAYLOAD", "CDC_RELAY_TABLE")
IDENTIFIER = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
# Columns that the package writes; OutboxMessage has all of them.
COLUMNS = [field.column for field in OutboxMessage._meta.fields]


@checks.register()
def check_settings(app_configs, **kwargs):
    found = []
    for name in (name for name in dir(settings) if name.startswith("CDC_RELAY_") and name not in SETTINGS):
        meant = get_close_matches(name, SETTINGS, 1, 0.75)
        hint = f"Did you mean {meant[0]}?" if meant else f"It reads {', '.join(SETTINGS)}. Settings of the relay belong to its environment."
        found.append(checks.Warning(f"cdc_relay does not read the setting {name}.", hint=hint, id="cdc_relay.W001"))
    if not re.fullmatch(rf"{IDENTIFIER}(\.{IDENTIFIER})?", NAME):
        hint = "Write it as in SQL, with quotes if needed: outbox, billing.events or 'billing.\"Events\"'."
        found.append(checks.Error(f"CDC_RELAY_TABLE = {NAME!r} is not the name of a table.", hint=hint, id="cdc_relay.E004"))
    return found


@checks.register()
def check_celery(app_configs, **kwargs):
    found, celery_apps = [], _celery_apps()
    for app in celery_apps:
        if not hasattr(app, "cdc_relay"):
            found.append(_not_installed(f"The Celery app {app.main or app!r} is not installed", "where the app is created"))
            continue
        using = app.cdc_relay["using"]
        if isinstance(using, str) and using not in connections:
            hint = f"DATABASES has: {', '.join(connections)}."
            found.append(checks.Error(f"cdc_relay.install has using={using!r}, which is no database.", hint=hint, id="cdc_relay.E005"))
        if app.conf.task_protocol == 1:
            hint = "Remove the setting: a task of protocol 1 is an error when it is sent."
            found.append(checks.Error(f"The Celery app {app.main or app!r} has task_protocol = 1.", hint=hint, id="cdc_relay.E006"))
        found += _check_patterns(app)
    if not celery_apps and _has_shared_tasks():
        found.append(_not_installed("There are shared tasks, but no Celery app", "in mysite/celery.py, and import that in mysite/__init__.py"))
    return found


def _not_installed(what, where):
    hint = f"Call cdc_relay.install(app) {where}. If you want it so: SILENCED_SYSTEM_CHECKS = ['cdc_relay.W003']."
    return checks.Warning(f"{what}: the tasks go to the broker at once, also if the transaction rolls back.", hint=hint, id="cdc_relay.W003")


def _celery_apps():
    """The apps of this process, but not Celery's own fallback. A check must not create that: it would stay the default."""
    from celery import _state

    return [app for app in _state._get_active_apps() if not (app is _state.default_app and app.main == "default")]


def _has_shared_tasks():
    from celery import _state

    return any(callback.__module__ == "celery.app" for callback in _state._on_app_finalizers)


def _check_patterns(app):
    found = []
    try:
        import_tasks(app)
        names = [name for name in app.tasks if not name.startswith("celery.")]
    except Exception as error:
        what = f"The tasks of the Celery app {app.main or app!r} cannot be imported: {type(error).__name__}: {error}"
        return [checks.Warning(what, hint="So no pattern of cdc_relay.install is checked.", id="cdc_relay.W008")]
    used = app.cdc_relay
    redact = used["redaction"].redact if used["redaction"] else {}
    problems = [("exclude", pattern, _problem_of(pattern, names)) for pattern in used["exclude"]]
    for pattern in redact if isinstance(redact, Mapping) else ():
        unknown = None if (problem := _problem_of(pattern, names)) else used["redaction"].unknown_arguments(pattern, names)
        problems.append(("redact", pattern, problem or unknown and f"has {', '.join(unknown)}, which no argument of its tasks is named."))
    problems += [("context", name, _problem_of_name(name)) for name in used["context"] if name != "*"]
    for kind, pattern, problem in problems:
        if problem:
            hint = "So redact hides nothing by it, or, for a full name, all arguments of many tasks." if kind == "redact" else None
            found.append(checks.Warning(f"{pattern!r} in {kind} of cdc_relay.install {problem}", hint=hint, id="cdc_relay.W002"))
    return found


def _problem_of(pattern, names):
    if not isinstance(pattern, str):
        return "is not a string: write it like 'metrics.*'."
    if pattern != pattern.strip() or not pattern:
        return "matches no task: it is empty, or has spaces around it."
    if pattern.count("[") > len(re.findall(r"\[!?\][^]]*\]|\[!?[^]]+\]", pattern)):
        return "has a [ without ], so it matches only names with [ in them."
    if re.search(r"\\|\^|\$|\(|\||\+", pattern):
        return "looks like a regular expression. It is a pattern of fnmatch: * matches anything, ? one character."
    if any(fnmatchcase(name, pattern) for name in names):
        return None
    packages = {name[: match.start()] + ".*" for name in names for match in re.finditer(r"\.", name)}
    meant = get_close_matches(pattern, [*names, *sorted(packages)], 1, 0.8)
    return "matches no registered task." + (f" Did you mean {meant[0]!r}?" if meant else "")


TRACE = ("traceparent", "tracestate", "baggage")


def _problem_of_name(name):
    """A name of context that no process can have."""
    if re.search(r"[*?[]", name):
        return "is a pattern. It takes names, or the string '*' for all."
    if name not in TRACE and (meant := get_close_matches(name, TRACE, 1, 0.8)):
        return f"is no header of OpenTelemetry. Did you mean {meant[0]!r}?"
    needed = "opentelemetry" if name in TRACE else "structlog"
    return None if find_spec(needed) else f"has no value here: {needed} is not installed."


@checks.register(deploy=True)
def check_queues(app_configs, **kwargs):
    """Asks the broker of each Celery app."""
    found = []
    for app in (app for app in _celery_apps() if hasattr(app, "cdc_relay")):
        try:
            with app.connection_for_write(connect_timeout=2) as connection:
                missing = [queue.name for queue in queues_of(app) if not is_declared(shared_part(queue), connection)]
        except Exception as error:
            found.append(checks.Info(f"The broker of the Celery app {app.main or app!r} does not answer: {error}", id="cdc_relay.I002"))
            continue
        if missing:
            hint = "Type: manage.py cdc_relay_declare. A worker also declares the queues that it consumes."
            what = f"The broker has no queue {', '.join(missing)}. A task waits two minutes if it is sent before its queue exists."
            found.append(checks.Warning(what, hint=hint, id="cdc_relay.W009"))
    return found


@checks.register(checks.Tags.database)
def check_database(app_configs, databases=None, **kwargs):
    found = []
    for alias, table in _tables():
        if alias in (databases or ()) and alias in connections:
            found += _check_table(connections[alias], table)
    return found


def _tables():
    """The databases and tables of the models and of the Celery apps."""
    default = router.db_for_write(OutboxMessage)
    pairs = {(default, NAME)}
    for app in _celery_apps():
        used = getattr(app, "cdc_relay", {})
        # A function returns the database of one task; it may not work here.
        if used.get("in_django") and not callable(used["using"]):
            pairs.add((used["using"] or default, used["table"] or NAME))
    return sorted(pairs)


def _check_table(connection, table):
    if connection.vendor != "postgresql":
        return [checks.Warning(f"Database {connection.alias} is no PostgreSQL, so it has no outbox.", id="cdc_relay.W006")]
    try:
        with connection.cursor() as cursor:
            row = find(cursor, table)
            return _check_found(connection, cursor, table, row) if row else [_missing(connection, cursor, table)]
    except DatabaseError as error:
        return [checks.Error(f"Database {connection.alias} does not answer: {str(error).strip()}", id="cdc_relay.E003")]


# Tables that have a dead-letter table.
OUTBOXES = """
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class d ON d.relnamespace = c.relnamespace AND d.relname = c.relname || '_dead_letter'
WHERE c.relkind IN ('r', 'p') AND d.relkind IN ('r', 'p') ORDER BY 1 LIMIT 5"""


def _missing(connection, cursor, table):
    cursor.execute(OUTBOXES)
    others = ", ".join(name for (name,) in cursor.fetchall())
    cursor.execute("SELECT current_database(), current_user")
    database, role = cursor.fetchone()
    meant = f"The database has {others}. If that is the outbox, CDC_RELAY_TABLE, or table of cdc_relay.install, must name it. Else: "
    hint = (meant if others else "") + f"As the owner of the database: {command(connection, table, role=role)}"
    return checks.Error(f"Table {table} does not exist in database {database} ({connection.alias}).", hint=hint, id="cdc_relay.E001")


# Of a table: its columns, those that every INSERT must fill, and those that the current role may not fill.
TABLE_COLUMNS = """
SELECT array_agg(attname::text), coalesce(array_agg(attname::text) FILTER (
    WHERE attnotnull AND NOT atthasdef AND attidentity = '' AND attname <> ALL (%(columns)s::text[])), '{}'),
  coalesce(array_agg(attname::text) FILTER (WHERE attname = ANY (%(columns)s::text[]) AND NOT has_column_privilege(attrelid, attnum, 'INSERT')), '{}')
FROM pg_catalog.pg_attribute WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped"""


def _check_found(connection, cursor, table, row):
    oid, name, schema, role, usage = row
    cursor.execute(TABLE_COLUMNS, {"columns": COLUMNS, "oid": oid})
    present, needed, denied = cursor.fetchone()
    missing = [column for column in COLUMNS if column not in present]
    if {"message_id", "routing_key"} <= set(missing):
        hint = "If another table is the outbox, CDC_RELAY_TABLE, or table of cdc_relay.install, must name it."
        return [checks.Error(f"Table {name} ({connection.alias}) is not an outbox of cdc-relay.", hint=hint, id="cdc_relay.E001")]
    found = []
    if missing:
        hint = f"As the owner of the table: {command(connection, table, 'setup --tables-only')}"
        found.append(checks.Error(f"Table {name} ({connection.alias}) has no column {', '.join(missing)}.", hint=hint, id="cdc_relay.E002"))
    if not find(cursor, table, "_dead_letter", parts(schema)[1]):
        hint = f"The relay does not start without. As the owner of the table: {command(connection, table, 'setup --tables-only')}"
        found.append(checks.Error(f"Table {name} ({connection.alias}) has no dead-letter table.", hint=hint, id="cdc_relay.E002"))
    if needed:
        hint = "The package does not fill it. If no trigger does, it needs a default."
        found.append(checks.Warning(f"Table {name} ({connection.alias}): {', '.join(needed)} is NOT NULL.", hint=hint, id="cdc_relay.W005"))
    if denied or not usage:
        hint = f"As the owner of the table: {grant_command(table, parts(role)[1])}"
        found.append(checks.Warning(f"Role {role} may not INSERT into {name} ({connection.alias}).", hint=hint, id="cdc_relay.W004"))
    if apps.is_installed("django.contrib.admin") and table == NAME:
        if grants := missing_grants(cursor, [("SELECT", NAME), ("SELECT", DEAD_LETTER_TABLE)]):
            found.append(checks.Info(f"The admin pages need SELECT ({connection.alias}).", hint="As the owner of the tables: " + " ".join(grants), id="cdc_relay.I001"))
    return found
