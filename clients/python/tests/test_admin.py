"""What the admin pages count, filter and change."""
import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from cdc_relay.django import operations
from cdc_relay.django.models import DeadLetter, OutboxMessage
from conftest import execute

WAITING, DEAD = "/admin/cdc_relay/outboxmessage/", "/admin/cdc_relay/deadletter/"
pytestmark = pytest.mark.django_db


ROWS = {
    "waiting": "NULL, NULL, 0, NULL",
    "due": "now() - interval '1 s', NULL, 2, NULL",
    "retrying": "now() + interval '1 h', NULL, 2, NULL",
    "scheduled": "now() + interval '1 h', NULL, 0, NULL",
    "expired": "NULL, now() - interval '1 s', 0, NULL",
}


@pytest.fixture
def rows(db):
    """A row of each state, by its state, which is its routing key too."""
    for state, values in ROWS.items():
        execute(
            f"""INSERT INTO outbox (available_at, expires_at, attempts, possible_duplicate, routing_key, payload, headers, last_error)
            VALUES ({values}, '{state}', '1', '{{"task": "shop.{state}"}}', 'nack')"""
        )
    return {message.routing_key: message for message in OutboxMessage.objects.all()}


def dead(count=1, reason="retries_exhausted"):
    execute(
        """INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, headers, failure_reason)
        SELECT 1000 + n, now(), gen_random_uuid(), 6, 1, 'dead', '{"task": "shop.dead"}', %s FROM generate_series(1, %s) n""",
        [reason, count],
    )


def key(message):
    """The name of the row on the pages."""
    ((id,),) = execute(f"SELECT id FROM {message._meta.db_table} WHERE message_id = %s", [message.pk])
    return f"{id}.{message.pk}"


def page(client, path, **data):
    answer = client.get(path, data)
    return answer.content.decode()


def act(client, action, messages, path=WAITING, **more):
    """Posts an action for messages or keys, and returns what the next page tells."""
    keys = [message if isinstance(message, str) else key(message) for message in messages]
    data = {"action": action, "index": "0", "_selected_action": keys, **more}
    if action == "cancel":
        assert "Yes, delete them" in client.post(path, data).content.decode()
        del data["index"]
        data["confirmed"] = "yes"
    answer = client.post(path, data, follow=True)
    return [str(message) for message in answer.context["messages"]]


def test_the_pages_begin_with_a_summary(admin_client, rows):
    dead(3)
    execute("UPDATE outbox SET created_at = now() - interval '3 h' WHERE routing_key = 'due'")
    execute("UPDATE outbox SET created_at = now() - interval '9 d' WHERE routing_key = 'scheduled'")
    for path in WAITING, DEAD:
        shown = page(admin_client, path)
        for text in "Waiting: 5", "Failing: 2", "Dead: 3", "Oldest waiting: 3 h":
            assert text in shown
    execute("DELETE FROM outbox; DELETE FROM outbox_dead_letter")
    shown = page(admin_client, WAITING)
    for text in "Waiting: 0", "Failing: 0", "Dead: 0", "Oldest waiting: none":
        assert text in shown


def test_counts_are_bounded(admin_client, monkeypatch):
    monkeypatch.setattr(operations, "MOST", 10)
    execute("INSERT INTO outbox (routing_key, payload, available_at, attempts) SELECT 'a', '1', now() + n * interval '1 h', n % 2 FROM generate_series(1, 12) n")
    dead(11)
    shown = page(admin_client, WAITING)
    assert "Waiting: more than 10" in shown and "Failing: at least 6" in shown and "Dead: more than 10" in shown
    assert "Oldest waiting: unknown" in shown and "10 waiting messages" in shown
    assert act(admin_client, "retry_now", OutboxMessage.objects.all(), select_across="1") == ["Due now: 5", "Not due now: 5 (never rejected: 5)"]


def test_a_slow_count_is_left_out(admin_client, monkeypatch):
    monkeypatch.setattr(operations, "DEAD", f"SELECT pg_sleep(60) FROM {operations.TABLE} LIMIT %(most)s")
    OutboxMessage.objects.create(routing_key="a", payload={})
    shown = page(admin_client, WAITING)
    assert "Dead: unknown" in shown and "Waiting: 1" in shown
    assert execute("SHOW statement_timeout") == [("0",)]


def test_filters(admin_client, rows):
    for state in ROWS:
        for query in {"state": state}, {"task": f"shop.{state}"}, {"q": f"hop.{state}"}:
            shown = page(admin_client, WAITING, **query)
            assert "1 waiting message" in shown and str(rows[state].pk) in shown, (query, shown)
        assert f'<td class="field-state">{state}</td>' in page(admin_client, WAITING, state=state)
    assert "2 waiting messages" in page(admin_client, WAITING, state="failing")
    assert "shop.due" in page(admin_client, WAITING, task="shop.gone")  # the list of tasks
    assert "0 waiting messages" in page(admin_client, WAITING, task="shop.gone")
    dead(2)
    dead(1, "expired")
    assert "1 dead letter" in page(admin_client, DEAD, failure_reason="expired")
    assert "3 dead letters" in page(admin_client, DEAD, task="shop.dead")


def test_the_newest_message_comes_first(admin_client):
    first, second = (OutboxMessage.objects.create(routing_key="a", payload={}) for _ in range(2))
    OutboxMessage.objects.filter(pk=second.pk).update(created_at="2020-01-01T00:00Z")
    shown = page(admin_client, WAITING)
    assert shown.index(f"{second.pk}/change") < shown.index(f"{first.pk}/change")


def test_retry_now(admin_client, rows):
    execute("UPDATE outbox SET available_at = available_at + interval '1 d' WHERE routing_key = 'retrying'")
    assert act(admin_client, "retry_now", rows.values()) == ["Due now: 2", "Not due now: 3 (never rejected: 3)"]
    assert execute("SELECT routing_key, attempts FROM outbox WHERE available_at <= clock_timestamp() ORDER BY id") == [("due", 0), ("retrying", 0)]


def test_cancel(admin_client, rows):
    assert act(admin_client, "cancel", rows.values()) == [
        "Cancelled: 3", "Not cancelled: 2 (neither scheduled nor retrying: 2)", "Cancelled, but perhaps published before: 1"
    ]  # fmt: skip
    assert {row.routing_key for row in OutboxMessage.objects.all()} == {"waiting", "expired"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action, done", [("retry_now", "Due now"), ("cancel", "Cancelled")])
def test_an_action_does_not_wait_for_a_locked_row(admin_client, outbox, rows, action, done):
    relay, due = connection.copy(), key(rows["due"])
    try:
        with relay.cursor() as cursor:
            cursor.execute("BEGIN; SELECT 1 FROM outbox WHERE routing_key = 'retrying' FOR UPDATE")
            execute("SET statement_timeout = '60 s'")  # ends a hang
            told = act(admin_client, action, [rows["retrying"], rows["due"]])
            cursor.execute("ROLLBACK")  # the server may end a closed session later
        assert [entry.object_id for entry in LogEntry.objects.all()] == [due]
        assert told[:2] == [f"{done}: 1", f"Not {done.lower()}: 1 (locked: 1)"]
        assert OutboxMessage.objects.filter(routing_key="retrying").exists()
    finally:
        relay.close()
        execute("RESET statement_timeout")
    assert act(admin_client, action, [rows["retrying"]]) == [f"{done}: 1"]
    execute("DELETE FROM outbox")


def test_requeue_keeps_the_order_of_a_key(admin_client, monkeypatch):
    execute(
        """INSERT INTO outbox_dead_letter (id, created_at, dead_at, message_id, attempts, schema_version, routing_key, ordering_key, failure_reason)
        SELECT n, now(), now() - n * interval '1 h', gen_random_uuid(), 6, 1, 'dead', 'k', 'expired' FROM generate_series(1, 3) n"""
    )
    order, requeue = [], DeadLetter.requeue
    monkeypatch.setattr(DeadLetter, "requeue", lambda self: order.append(self.id) or requeue(self))
    assert act(admin_client, "requeue", DeadLetter.objects.all(), DEAD) == ["Sent back: 3"]
    assert order == [1, 2, 3]
    assert execute("SELECT id FROM outbox ORDER BY id") == [(1,), (2,), (3,)]


def logged():
    return {(entry.content_type.model, entry.action_flag, entry.object_id, str(entry), entry.user.username) for entry in LogEntry.objects.all()}


def test_the_log_says_who_changed_which_messages(admin_client, rows):
    due, retrying, timed = rows["due"], rows["retrying"], [row for state, row in rows.items() if state not in ("waiting", "expired")]
    act(admin_client, "retry_now", rows.values())
    assert LogEntry.objects.count() == 2
    for row in due, retrying:
        history = page(admin_client, f"{WAITING}{key(row)}/history/")
        assert "Retry now" in history and "admin" in history
    assert "Retry now" not in page(admin_client, f"{WAITING}{key(rows['scheduled'])}/history/")
    LogEntry.objects.all().delete()
    keys = [key(row) for row in timed]
    act(admin_client, "cancel", rows.values())
    assert logged() == {("outboxmessage", 3, id, f"Deleted “{row}.”", "admin") for row, id in zip(timed, keys)}
    assert set(LogEntry.objects.values_list("change_message", flat=True)) == {"Cancel"}


def test_the_log_shows_a_dead_letter_and_the_message_that_it_becomes(admin_client):
    dead()
    letter = DeadLetter.objects.get()
    name = key(letter)
    act(admin_client, "requeue", [letter], DEAD)
    assert "Send back" in page(admin_client, f"{WAITING}{name}/history/")
    execute("DELETE FROM outbox")
    dead()
    execute("UPDATE outbox_dead_letter SET message_id = %s", [letter.pk])
    assert "Send back" in page(admin_client, f"{DEAD}{name}/history/")
    assert {(model, flag, id) for model, flag, id, *_ in logged()} == {("deadletter", 3, name), ("outboxmessage", 1, name)}


@pytest.mark.parametrize("action", ["retry_now", "cancel", "requeue"])
def test_an_action_on_many_messages_logs_them_in_one_statement(admin_client, action):
    dead(50)
    execute("INSERT INTO outbox (routing_key, payload, available_at, attempts) SELECT repeat('k', 250), '1', now(), 1 FROM generate_series(1, 50) n")
    model, path = (DeadLetter, DEAD) if action == "requeue" else (OutboxMessage, WAITING)
    with CaptureQueriesContext(connection) as queries:
        act(admin_client, action, model.objects.all()[:1], path, select_across="1")
    logs = [query for query in queries if 'INSERT INTO "django_admin_log"' in query["sql"]]
    assert len(logs) == (2 if action == "requeue" else 1)
    assert LogEntry.objects.count() == 50 * len(logs)


@pytest.mark.parametrize("action", ["retry_now", "cancel", "requeue"])
def test_an_error_of_the_log_undoes_the_action(admin_client, rows, action):
    dead()
    execute("ALTER TABLE django_admin_log ADD CHECK (object_id IS NULL)")
    chosen, path = ([DeadLetter.objects.get()], DEAD) if action == "requeue" else ([rows["retrying"]], WAITING)
    (told,) = act(admin_client, action, chosen, path)
    assert told.startswith("Nothing was changed. ") and "django_admin_log" in told
    assert OutboxMessage.objects.count() == 5 and DeadLetter.objects.count() == 1
    assert execute("SELECT attempts FROM outbox WHERE routing_key = 'retrying'") == [(2,)]


@pytest.fixture
def clerk(db):
    """clerk("SELECT ON outbox") makes the pages use a role that has only these grants on the outbox, and all others."""
    execute(
        """CREATE ROLE shop_clerk; GRANT USAGE ON SCHEMA public TO shop_clerk; GRANT ALL ON ALL TABLES IN SCHEMA public TO shop_clerk;
        GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO shop_clerk; REVOKE ALL ON outbox, outbox_dead_letter FROM shop_clerk"""
    )

    def use(*grants):
        for grant in grants:
            execute(f"GRANT {grant} TO shop_clerk")
        execute("SET LOCAL ROLE shop_clerk")

    yield use


def test_a_role_without_grants_sees_what_to_type(admin_client, clerk, rows):
    one = f"{WAITING}{key(rows['due'])}"
    clerk()
    for path in WAITING, DEAD, f"{one}/change/", f"{one}/history/":
        answer = admin_client.get(path)
        shown = answer.content.decode()
        assert answer.status_code == 403 and "permission denied" in shown
        assert "GRANT SELECT ON outbox TO shop_clerk;" in shown and "GRANT SELECT ON outbox_dead_letter TO shop_clerk;" in shown


def test_the_summary_names_a_missing_grant_on_the_other_table(admin_client, clerk, rows):
    clerk("SELECT ON outbox")
    shown = page(admin_client, WAITING)
    assert "Waiting: 5" in shown and "Dead: unknown: GRANT SELECT ON outbox_dead_letter TO shop_clerk;" in shown


def test_a_missing_table_names_the_command(admin_client):
    execute("ALTER TABLE outbox RENAME TO gone")
    answer = admin_client.get(WAITING)
    assert answer.status_code == 503 and "cdc-relay setup --database-url" in answer.content.decode()
    execute("ALTER TABLE gone RENAME TO outbox; ALTER TABLE outbox DROP last_error")
    assert "cdc-relay setup --tables-only --database-url" in admin_client.get(WAITING).content.decode()


@pytest.mark.parametrize(
    "action, grants, wanted",
    [
        ("retry_now", [], "GRANT UPDATE ON outbox TO shop_clerk;"),
        ("cancel", ["UPDATE ON outbox"], "GRANT DELETE ON outbox TO shop_clerk;"),
        ("cancel", [], "GRANT UPDATE, DELETE ON outbox TO shop_clerk;"),
        ("requeue", ["DELETE ON outbox_dead_letter"], "GRANT INSERT ON outbox TO shop_clerk;"),
        ("requeue", [], "GRANT DELETE ON outbox_dead_letter TO shop_clerk; GRANT INSERT ON outbox TO shop_clerk;"),
    ],
)
def test_an_action_names_the_missing_grant(admin_client, clerk, rows, action, grants, wanted):
    dead()
    clerk("SELECT ON outbox, outbox_dead_letter", *grants)
    chosen, path = ([DeadLetter.objects.get()], DEAD) if action == "requeue" else ([rows["retrying"]], WAITING)
    (told,) = act(admin_client, action, chosen, path)
    assert told.startswith(f"Nothing was changed. As the owner of the tables: {wanted} Error: permission denied")
    assert OutboxMessage.objects.count() == 5 and DeadLetter.objects.count() == 1


@pytest.mark.parametrize("action, codename", [("retry_now", "change_outboxmessage"), ("cancel", "delete_outboxmessage"), ("requeue", "change_deadletter")])
def test_an_action_needs_its_permission(client, django_user_model, rows, action, codename):
    dead()
    chosen, path = (DeadLetter.objects.get(), DEAD) if action == "requeue" else (rows["retrying"], WAITING)
    viewer = django_user_model.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_outboxmessage", "view_deadletter"]))
    client.force_login(viewer)
    assert f'value="{action}"' not in page(client, path)
    client.post(path, {"action": action, "_selected_action": [key(chosen)], "confirmed": "yes"})
    assert execute("SELECT attempts FROM outbox WHERE routing_key = 'retrying'") == [(2,)] and DeadLetter.objects.exists()
    viewer.user_permissions.add(Permission.objects.get(codename=codename))
    client.force_login(django_user_model.objects.get())
    assert f'value="{action}"' in page(client, path)
