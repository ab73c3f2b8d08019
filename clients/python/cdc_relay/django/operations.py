"""What the admin pages ask and change in the tables, as cdc-relay's commands do. No question reads a table of any size."""
from contextlib import contextmanager

from django.db import DatabaseError, transaction

from .models import DEAD_LETTER_TABLE, NAME, TABLE
from .tables import DENIED, code, missing_grants

# Up to how many rows are counted, and changed by one action.
MOST = 10_000
# Of how many of the newest rows the filters list the values.
NEWEST = 1000

# In jsonb, a number of 12 bytes may have 147,457 digits, and a compressed value any size.
SMALL_JSONB = """pg_column_compression({0}) IS NULL AND pg_column_size({0}) <= 16384
  AND NOT jsonb_path_exists({0}, 'strict $.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))')"""


def shown(column, most=1000, small="true", value=None):
    """The text of a column, or of a value made of it: Python has neither all times nor all numbers of Postgres."""
    text, size = f"({value or column})::text", f"pg_column_size({column})"
    cut = f"left({text}, {most}) || repeat('…', (length({text}) > {most})::integer)"
    return f"CASE WHEN {size} <= 100000 AND {small.format(column)} THEN {cut} ELSE 'too large for this page: '::text || {size} || ' bytes'::text END"


def task(table):
    column = f"{table}.headers"
    return f"CASE WHEN pg_column_size({column}) <= 32768 AND jsonb_typeof({column} -> 'task'::text) = 'string'::text THEN left({column} ->> 'task'::text, 255) END"


def name(table):
    """The task, or else the routing key, as in the text of a message."""
    return f"left(coalesce(nullif({task(table)}, ''), {table}.routing_key), 150)"


@contextmanager
def glance(connection):
    """A cursor in a transaction, or in a savepoint, with one second for each statement: a table full of dead rows is slow."""
    with transaction.atomic(connection.alias), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '1s'")
        yield cursor
        transaction.set_rollback(True, connection.alias)  # of the setting


# Bounded: how many rows there are, how many wait for a retry, and when the oldest row was created that may leave.
OUTBOX = f"""
WITH oldest AS MATERIALIZED (
  SELECT created_at, available_at IS NULL OR available_at <= statement_timestamp() AS ready FROM {TABLE} ORDER BY id LIMIT %(most)s
), timed AS MATERIALIZED (
  SELECT attempts FROM {TABLE} WHERE available_at IS NOT NULL ORDER BY available_at LIMIT %(most)s
)
SELECT (SELECT count(*) FROM oldest), (SELECT count(*) FROM timed WHERE attempts > 0), (SELECT count(*) FROM timed) = %(most)s,
  (SELECT extract(epoch FROM statement_timestamp() - min(created_at)) FROM oldest WHERE ready AND isfinite(created_at))"""
DEAD = f"SELECT count(*) FROM (SELECT 1 FROM {DEAD_LETTER_TABLE} ORDER BY dead_at LIMIT %(most)s) d"


def summary(connection):
    """Texts for the top of the pages: waiting, failing, oldest, dead. A part that cannot be read says why."""
    texts = {}
    for sql, table, names, shown_row in (
        (OUTBOX, NAME, ("waiting", "failing", "oldest"), _outbox), (DEAD, DEAD_LETTER_TABLE, ("dead",), lambda dead: [number(dead)])
    ):  # fmt: skip
        try:
            with glance(connection) as cursor:
                cursor.execute(sql, {"most": MOST + 1})
                texts.update(zip(names, shown_row(*cursor.fetchone())))
        except DatabaseError as error:
            texts.update(dict.fromkeys(names, _why(error, connection, table)))
    return texts


def _outbox(waiting, failing, more, oldest):
    # If many rows wait for their time, a ready one may come after those that were read.
    return number(waiting), number(failing, more), "unknown" if oldest is None and waiting > MOST else age(oldest)


def _why(error, connection, table):
    if code(error) != DENIED:
        return "unknown"
    with connection.cursor() as cursor:
        return "unknown: " + " ".join(missing_grants(cursor, [("SELECT", table)]))


def number(n, more=False):
    return f"more than {MOST:,}" if n > MOST else f"at least {n:,}" if more else f"{n:,}"


def age(seconds):
    if seconds is None:
        return "none"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


def choose(queryset, fits):
    """The ids of at most MOST rows that fit, and how many others there are."""
    rows = list(queryset.values_list("relay_id", "shown_available_at", "relay_attempts")[:MOST])
    fitting = [id for id, available_at, attempts in rows if fits(available_at, attempts)]
    return fitting, len(rows) - len(fitting)


def change(cursor, sql, ids):
    """Runs a statement for rows of choose. It returns what the statement returns for each changed row."""
    cursor.execute(sql, [ids])
    return cursor.fetchall()


# Those of the chosen rows that no session has locked.
FREE = f"""
WITH free AS (
  SELECT r.id FROM {TABLE} r WHERE r.id = ANY (%s::bigint[]) ORDER BY r.id FOR UPDATE SKIP LOCKED)"""

# The key of a row, and its text in the log of the admin.
SHOWN = f"concat(r.id, '.', r.message_id), concat({name('r')}, ' ', r.message_id)"

# For rejected rows, as `cdc-relay resend`. A due row keeps its time.
RETRY_NOW = f"""{FREE}
UPDATE {TABLE} r SET attempts = 0, available_at = least(r.available_at, clock_timestamp())
  FROM free f WHERE r.id = f.id RETURNING {SHOWN}"""

# For rows with available_at. A relay may be publishing a row whose time has come, without a lock.
CANCEL = f"""{FREE}
DELETE FROM {TABLE} r USING free f WHERE r.id = f.id RETURNING {SHOWN},
  NOT coalesce(r.available_at > clock_timestamp() AND r.possible_duplicate IS NOT TRUE, false)"""
