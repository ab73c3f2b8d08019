"""The names of the tables, and what to type if the database lacks one, a column or a privilege.

It needs no models: celery.py uses it in projects without the app in INSTALLED_APPS.
"""
import re
import shlex
from contextlib import contextmanager
from urllib.parse import quote, urlencode

from django.db import DatabaseError

UNDEFINED_TABLE, UNDEFINED_COLUMN, DENIED = "42P01", "42703", "42501"


def parts(table):
    """The schema, or None, and the name of a table that is written as in SQL."""
    found = [p[1:-1].replace('""', '"') if p[0] == '"' else p.lower() for p in re.findall(r'"(?:[^"]|"")+"|[^".]+', table)] or [table]
    return (found[-2] if len(found) > 1 else None), found[-1]


def quoted(table, suffix=""):
    """Quotes the parts of the name. Django leaves a quoted db_table as it is."""
    schema, name = parts(table)
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in (schema, name + suffix) if part)


def command(connection, table, verb="setup", role=None):
    """The command of cdc-relay for this table, which the owner runs: the application's role must not own it. Role may send then."""
    words = [*verb.split(), *(["--app-role", role] if role else [])]
    return shlex.join(words_of({**connection.settings_dict, "USER": "OWNER"}, table, *words))


def words_of(s, table, *words):
    """The command line for a table in the database with these settings. The URL has no password."""
    host, port = s.get("HOST") or "", s.get("PORT")
    user = quote(s["USER"], safe="") + "@" if s.get("USER") else ""
    if host.startswith("/") or not host:
        query = urlencode({key: value for key, value in {"host": host, "port": port}.items() if value}, safe="/")
        address, query = "", query and "?" + query
    else:
        address, query = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else ""), ""
    database = ["--database-url", f"postgres://{user}{address}/{quote(s['NAME'], safe='')}{query}"] if s.get("NAME") else []
    return ["cdc-relay", *words, *_flag(table), *database]


def _flag(table):
    return [] if quoted(table) in ('"outbox"', '"public"."outbox"') else ["--table", table]


def grant_command(table, role):
    """The command of cdc-relay that lets a role send. The owner of the table runs it, whose URL is unknown here."""
    return shlex.join(["cdc-relay", "setup", "--app-role", role, *_flag(table)])


def code(error):
    """The SQLSTATE of an error of Django, or None."""
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


@contextmanager
def explained(connection, table):
    """Adds to an error of an INSERT what to type, if the table, a column or a privilege is missing.

    It asks the database nothing: the error has ended the transaction.
    """
    try:
        yield
    except DatabaseError as error:
        if cure := _cure(error, connection, table):
            error.args = (f"{str(error).rstrip()}\n{cure}",)
        raise


def _cure(error, connection, table):
    cause, more = error.__cause__, f"`manage.py check --database {connection.alias}` tells more."
    if getattr(getattr(cause, "diag", None), "context", None):
        return None  # a trigger of the table has failed
    session = getattr(connection.connection, "info", None)
    role = connection.settings_dict.get("OPTIONS", {}).get("assume_role") or getattr(session, "user", None)
    if code(error) == UNDEFINED_TABLE:
        database = getattr(session, "dbname", connection.alias)
        return f"As the owner of database {database}, create the outbox: {command(connection, table, role=role)}\n{more}"
    if code(error) == UNDEFINED_COLUMN:
        return f"As the owner of the table, update it: {command(connection, table, 'setup --tables-only')}\n{more}"
    if code(error) == DENIED:
        return f"Role {role} may not send. As the owner of the table: {grant_command(table, role)}\n{more}"
    return None


FIND = """
SELECT c.oid, c.oid::regclass::text, pg_catalog.quote_ident(n.nspname), pg_catalog.quote_ident(current_user), has_schema_privilege(n.oid, 'USAGE')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %(name)s AND CASE WHEN %(schema)s::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = %(schema)s END"""


def find(cursor, table, suffix="", schema=None):
    """The oid of a table, its name, its schema, the current role, and if that may use the schema; None: there is no table."""
    given, name = parts(table)
    cursor.execute(FIND, {"schema": schema or given, "name": name + suffix})
    return cursor.fetchone()


def missing_grants(cursor, needs):
    """The GRANTs that the current role lacks, of pairs ("SELECT, DELETE", table)."""
    found = []
    for privileges, table in needs:
        if not (row := find(cursor, table)):
            continue
        oid, name, schema, role, usage = row
        if not usage:
            found.append(f"GRANT USAGE ON SCHEMA {schema} TO {role};")
        cursor.execute(
            "SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(%s::oid, p) AND NOT (p <> 'DELETE' AND (SELECT bool_and("
            "has_column_privilege(attrelid, attnum, p)) FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped))",
            [privileges.split(", "), oid, oid],
        )
        if denied := [privilege for (privilege,) in cursor.fetchall()]:
            found.append(f"GRANT {', '.join(denied)} ON {name} TO {role};")
    return list(dict.fromkeys(found))
