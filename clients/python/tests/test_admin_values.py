"""The admin pages show each value that a role with INSERT can write, and tell rows of one message_id apart."""
import html
import uuid

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission

from conftest import execute
from test_admin import DEAD, WAITING, act

pytestmark = pytest.mark.django_db

DEEP = "'" + "[" * 3000 + "]" * 3000 + "'"
LATE = "'9999-12-31 23:00Z'"
TIMES = "'infinity'", "'-infinity'", "'4714-11-24 BC'", "'0001-01-01Z'", LATE, "'10000-01-01'", "'294276-12-31 23:59:59Z'"
TEXTS = "''", "'<script>x</script>'", r"E'\x01\x1b[31m\x7f \u202e {{ x }} %s'", "repeat('long', 600)", "'2026-01-02 03:04:05'"
JSONB = (
    "'[1]'", "'\"x\"'", "'5'", "'true'", "'null'", "'[\"task\", \"id\", \"argsrepr\"]'", "'{}'", "'{\"task\": 5, \"id\": []}'", "'{\"task\": [\"a\"]}'",
    "'{\"task\": \"<b>bold</b>\", \"id\": null}'", "'{\"task\": \"\"}'", "'1e5000'", "'{\"task\": [1e131071], \"n\": -1e131071}'", DEEP,
    "jsonb_build_object('task', repeat('long', 600), 'n', repeat('x', 40000))",
)  # fmt: skip
TOO_LARGE = [value for value in JSONB if "1e" in value or "40000" in value or value == DEEP]
JSON = *(value for value in JSONB if "jsonb" not in value), r"'"r'["\u0000", "\ud800"]'r"'", "'1e999999'", "json_build_array(repeat('x', 200000))"
VALUES = {
    "id": ("-9223372036854775808", "-1", "9223372036854775807"), "created_at": TIMES, "available_at": TIMES, "expires_at": TIMES, "dead_at": TIMES,
    "attempts": ("-2147483648", "2147483647"), "schema_version": ("-32768", "32767"), "max_attempts": ("-32768", "32767"),
    "possible_duplicate": ("true", "false"), "exchange": TEXTS, "routing_key": TEXTS, "ordering_key": TEXTS, "coalesce_key": TEXTS,
    "last_error": TEXTS, "failure_reason": TEXTS, "headers": JSONB, "properties": JSONB, "payload": JSON, "redacted_payload": JSON,
    "payload_bytes": ("''", r"'\x00ff'", "decode(repeat('ff', 5000), 'hex')"),
}  # fmt: skip
NOT_SHOWN = ("id", "schema_version", "max_attempts", "possible_duplicate", "coalesce_key")
GIVEN = {
    WAITING: {"routing_key": "'a'", "attempts": "1", "available_at": "now()", "payload": "'1'"},
    DEAD: {"id": "(SELECT count(*) FROM outbox_dead_letter)", "message_id": "gen_random_uuid()", "created_at": "now()", "attempts": "6", "schema_version": "1", "routing_key": "'a'",
           "failure_reason": "'expired'", "payload": "'1'"},
}  # fmt: skip
TABLES = {WAITING: "outbox", DEAD: "outbox_dead_letter"}


def insert(path, column, value, **columns):
    """Inserts a row, and returns its key on the pages, and the beginning of the column's text."""
    columns = {**GIVEN[path], column: value, **columns}
    text = "octet_length(payload_bytes) || ' bytes'" if column == "payload_bytes" else f"left({column}::text, 15)"
    sql = f"INSERT INTO {TABLES[path]} ({', '.join(columns)}) SELECT {', '.join(columns.values())} RETURNING concat(id, '.', message_id), {text}"
    return execute(sql)[0]


def rows():
    return [(path, column) for column in VALUES for path in TABLES if column not in {WAITING: ("dead_at", "failure_reason"), DEAD: ("available_at",)}[path]]


@pytest.mark.parametrize("path, column", rows())
def test_each_value_is_shown_found_and_changed(admin_client, client, django_user_model, settings, path, column):
    settings.CDC_RELAY_SHOW_PAYLOAD = True
    viewer = django_user_model.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_outboxmessage", "view_deadletter"]))
    client.force_login(viewer)
    client.raise_request_exception = False
    keys, failed = [], []
    for value in VALUES[column]:
        key, text = insert(path, column, value, **({"payload": "NULL"} if column == "payload_bytes" else {}))
        keys.append(key)
        for page, expected in ("change", text), ("history", ""):
            answer = client.get(f"{path}{key}/{page}/")
            told = answer.content.decode() if answer.status_code == 200 else ""
            if column in ("headers", "properties") and value in TOO_LARGE:
                expected = expected and "too large for this page: "
            if value == LATE:
                expected = expected and "Dec. 31, 9999, 5 p.m."
            if not told or column not in NOT_SHOWN and html.escape(expected) not in told:
                failed.append((value[:60], page, answer.status_code))
    count = f"{len(keys)} {'waiting message' if path == WAITING else 'dead letter'}"
    for query in "", "?q=x", "?task=shop.x", "?o=1.2.3.4.5.6.7", "?o=-5", f"?q={keys[0].partition('.')[2]}", "?state=failing" if path == WAITING else "?failure_reason=x":
        answer = client.get(path + query)
        told = answer.content.decode()
        if answer.status_code != 200 or not query and count not in told or "0" * 20 in told:
            failed.append((query, answer.status_code))
    assert not failed
    if path == DEAD:
        assert act(admin_client, "requeue", keys[:1], path) == ["Sent back: 1"]
        assert act(admin_client, "requeue", keys, path, select_across="1") == [f"Sent back: {len(keys) - 1}"]
        assert LogEntry.objects.count() == 2 * len(keys)
    else:
        act(admin_client, "retry_now", keys)
        assert LogEntry.objects.count() == execute("SELECT count(*) FROM outbox WHERE attempts = 0")[0][0]
        told = act(admin_client, "cancel", keys)
        assert told == [f"Cancelled: {len(keys)}", f"Cancelled, but perhaps published before: {len(keys)}"]  # all are due now
    assert execute(f"SELECT count(*) FROM {TABLES[path]}") == [(0,)]


@pytest.mark.parametrize("path, action", [(WAITING, "retry_now"), (WAITING, "cancel"), (DEAD, "requeue")])
def test_rows_of_one_message_id(admin_client, path, action):
    """Also dead letters of one id: TRUNCATE … RESTART IDENTITY uses ids again."""
    one, two = (f"'{uuid.uuid4()}'" for _ in range(2))
    given = [("first", 101, one), ("second", 102, one), ("third", 101 if path == DEAD else 103, two)]
    keys = [insert(path, "routing_key", f"'{name}'", id=str(id), message_id=message_id)[0] for name, id, message_id in given]
    shown = admin_client.get(path).content.decode()
    for key, (name, *_) in zip(keys, given):
        assert f"{key}/change/" in shown
        page = admin_client.get(f"{path}{key}/change/").content.decode()
        assert f"{key}/history/" in page and ">None<" not in page and [n for n, *_ in given if f'<div class="readonly">{n}</div>' in page] == [name]
    done = {"retry_now": "Due now", "cancel": "Cancelled", "requeue": "Sent back"}[action]
    assert act(admin_client, action, [keys[0]], path)[0] == f"{done}: 1"
    assert {entry.object_id for entry in LogEntry.objects.all()} == {keys[0]}
    assert act(admin_client, action, ["", "x", f"102.{two[1:-1]}", f"9{'9' * 5000}.{two[1:-1]}", keys[1].replace("102", "99999999999999999999")], path)[0] == f"{done}: 0"
    left = "attempts = 1" if action == "retry_now" else "true"
    assert execute(f"SELECT routing_key FROM {TABLES[path]} WHERE {left} ORDER BY 1") == [("second",), ("third",)]
