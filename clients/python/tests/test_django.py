"""The models and admin pages."""
import subprocess
import sys
import uuid
from datetime import datetime

import pytest
import shop

from cdc_relay.django.models import DeadLetter, OutboxMessage

from conftest import RELAY, execute
from test_admin import key

pytestmark = pytest.mark.django_db


def dead_letter(**columns):
    message = OutboxMessage.objects.create(routing_key="orders", payload={"secret": "s3cr3t"}, **columns)
    execute(
        """WITH d AS (DELETE FROM outbox WHERE message_id = %s RETURNING *)
        INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, possible_duplicate, exchange, routing_key,
          ordering_key, headers, payload, redacted_payload, failure_reason, last_error)
        SELECT id, created_at, message_id, 6, schema_version, true, exchange, routing_key, ordering_key, headers, payload,
          redacted_payload, 'retries_exhausted', 'unroutable: no queue' FROM d""",
        [message.message_id],
    )
    return DeadLetter.objects.get(pk=message.message_id)


def test_creating_a_message_needs_only_insert(settings):
    execute(
        """CREATE ROLE shop_python; GRANT USAGE ON SCHEMA public TO shop_python;
        GRANT INSERT (message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties,
          redacted_payload, created_at, available_at, expires_at, max_attempts, coalesce_key) ON outbox TO shop_python;
        SET LOCAL ROLE shop_python"""
    )
    OutboxMessage.objects.create(routing_key="orders", payload={"a": 1}, headers={"h": 1})


def test_dates_and_uuids_in_a_payload():
    key = uuid.uuid4()
    OutboxMessage.objects.create(routing_key="orders", payload={"key": key, "at": datetime(2030, 1, 2, 3, 4)})
    assert OutboxMessage.objects.get().payload == {"key": str(key), "at": "2030-01-02T03:04:00"}


def test_coalesce_key_and_max_attempts_are_fields():
    OutboxMessage.objects.create(routing_key="stock", coalesce_key="sku1", max_attempts=3)
    message = OutboxMessage.objects.get()
    assert (message.coalesce_key, message.max_attempts) == ("sku1", 3)


def test_requeue_keeps_the_message():
    letter = dead_letter(ordering_key="o1", exchange="shop")
    assert letter.requeue() and not letter.requeue()
    message = OutboxMessage.objects.get(pk=letter.message_id)
    assert (message.routing_key, message.ordering_key, message.exchange, message.payload) == ("orders", "o1", "shop", {"secret": "s3cr3t"})
    sql = "SELECT attempts, last_error, possible_duplicate, available_at <= now() FROM outbox WHERE message_id = %s"
    assert execute(sql, [letter.message_id]) == [(0, None, True, True)]


def test_requeue_keeps_the_columns_of_the_application():
    execute(
        """ALTER TABLE outbox ADD "100%% Tenant" text, ADD region text, ADD note text;
        ALTER TABLE outbox_dead_letter ADD "100%% Tenant" text, ADD region int, ADD score int GENERATED ALWAYS AS (1) STORED""",
        [],
    )
    letter = dead_letter()
    execute("""UPDATE outbox_dead_letter SET "100%% Tenant" = %s, region = 7""", ["acme"])
    assert letter.requeue()
    assert execute("""SELECT "100%% Tenant", region, note FROM outbox WHERE message_id = %s""", [letter.message_id]) == [("acme", None, None)]


@pytest.mark.django_db(transaction=True)
def test_the_table_may_be_in_another_schema(relay_environment, start):
    table = 'Billing."Events"'
    execute("CREATE SCHEMA billing")
    subprocess.run([RELAY, "setup", "--mode", "poll", "--table", table], check=True, env=relay_environment, stdout=subprocess.DEVNULL)
    try:
        program = start(sys.executable, "other_table.py", SHOP_TABLE=table)
        program.process.wait(120)
        assert f"keys: created dead {shop.app.conf.task_default_queue}" in program.said()
    finally:
        execute("DROP SCHEMA billing CASCADE")


def test_admin_lists_inspects_redacts_explains_and_requeues(admin_client, settings):
    waiting = OutboxMessage.objects.create(
        routing_key="mail", payload=[["s3cr3t"], {}, {}], headers={"task": "shop.mail", "argsrepr": "('s3cr3t',)"}
    )
    redacted = OutboxMessage.objects.create(routing_key="mail", payload={"card": "s3cr3t"}, redacted_payload={"card": "1234 ****"})
    letter = dead_letter()
    execute("UPDATE outbox SET attempts = 3, last_error = 'unroutable: no queue'")
    page = admin_client.get("/admin/cdc_relay/outboxmessage/").content.decode()
    assert "shop.mail" in page and str(waiting.pk) in page
    for shown in ("", "show"):
        settings.CDC_RELAY_SHOW_PAYLOAD = bool(shown)
        page = admin_client.get(f"/admin/cdc_relay/outboxmessage/{key(waiting)}/change/").content.decode()
        assert ("s3cr3t" in page) == bool(shown) and "unroutable: no queue" in page
        page = admin_client.get(f"/admin/cdc_relay/outboxmessage/{key(redacted)}/change/").content.decode()
        assert "s3cr3t" not in page and "1234 ****" in page
    execute("UPDATE outbox SET redacted_payload = 'null' WHERE message_id = %s", [redacted.pk])
    assert "s3cr3t" not in admin_client.get(f"/admin/cdc_relay/outboxmessage/{key(redacted)}/change/").content.decode()
    assert admin_client.post(f"/admin/cdc_relay/outboxmessage/{key(waiting)}/delete/", {"post": "yes"}).status_code == 403

    page = admin_client.get("/admin/cdc_relay/deadletter/").content.decode()
    assert "retries_exhausted" in page and str(letter.pk) in page
    answer = admin_client.post("/admin/cdc_relay/deadletter/", {"action": "requeue", "_selected_action": [key(letter)]}, follow=True)
    assert "Sent back: 1" in answer.content.decode()
    assert OutboxMessage.objects.filter(pk=letter.pk).exists() and not DeadLetter.objects.exists()


def test_admin_names_what_it_cannot_requeue(admin_client):
    first, second = dead_letter(), dead_letter()
    execute("INSERT INTO outbox (id, routing_key, payload) SELECT id, 'taken', '{}' FROM outbox_dead_letter WHERE message_id = %s", [first.pk])
    answer = admin_client.post("/admin/cdc_relay/deadletter/", {"action": "requeue", "_selected_action": [key(first), key(second)]}, follow=True)
    page = answer.content.decode()
    assert "Sent back: 1" in page and "Not sent back: 1" in page and str(first.pk) in page and "gives a message a new id" in page
    assert DeadLetter.objects.get().pk == first.pk
