"""cdc_relay.django.waiting: a transaction that waits for the relay."""
import logging

import pytest
import shop
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import cdc_relay
from cdc_relay.django.models import DeadLetter, OutboxMessage
from cdc_relay.django.waiting import outbox_context
from conftest import execute
from test_databases import ToBilling, billing  # noqa: F401 a fixture

pytestmark = pytest.mark.django_db(transaction=True)
LONG = 120
QUEUE = f"{shop.app.conf.task_default_queue}_waiting"


@pytest.fixture(autouse=True)
def empty(outbox):
    shop.app.amqp.queues.select_add(QUEUE)
    cdc_relay.declare_queues(shop.app)
    yield
    outbox.clear()
    DeadLetter.objects.all().delete()


def message(routing_key=QUEUE):
    return str(OutboxMessage.objects.create(routing_key=routing_key, payload={}).pk)


def count():
    return OutboxMessage.objects.count()


def test_it_waits_until_the_messages_are_published(relay, outbox):
    relay()
    with outbox_context(timeout=LONG) as outcomes:
        ids = [message(), shop.mail.apply_async(("ann",), queue=QUEUE).id, message("of no queue")]
        assert outcomes == {}
    assert outcomes == dict(zip(ids, ["published", "published", "dead: retries_exhausted"]))
    assert count() == 0


def test_without_a_relay_messages_stay_waiting():
    with outbox_context(timeout=0.01) as outcomes:
        first, second = message(), message()
    assert outcomes == {first: "waiting", second: "waiting"} and count() == 2


def test_without_flush_it_is_a_transaction():
    with pytest.raises(ZeroDivisionError), outbox_context(flush=False):
        message()
        raise ZeroDivisionError
    assert count() == 0
    with outbox_context(flush=False) as outcomes:
        message()
    assert outcomes == {} and count() == 1


def test_what_was_rolled_back_is_not_waited_for():
    with outbox_context(timeout=0) as outcomes:
        for inner in outbox_context, transaction.atomic:
            with pytest.raises(ZeroDivisionError), inner():
                message()
                raise ZeroDivisionError
        kept = message()
    assert outcomes == {kept: "waiting"} and count() == 1
    with pytest.raises(ZeroDivisionError), outbox_context(timeout=0) as outcomes:
        message()
        raise ZeroDivisionError
    assert outcomes == {} and count() == 1
    message()  # no context is left
    assert outcomes == {}


def test_flush_of_a_nested_context_is_for_its_messages(relay):
    relay()
    for outer in True, False:
        with outbox_context(flush=outer, timeout=LONG) as outcomes:
            with outbox_context(flush=not outer, timeout=0) as inner:
                other = message()
            with outbox_context(timeout=0):
                as_around = message()
            assert inner is outcomes == {}
        assert outcomes == {as_around if outer else other: "published"}


def test_only_the_outermost_context_asks_and_stops_in_time():
    old = OutboxMessage.objects.create(routing_key=QUEUE, payload={})
    with CaptureQueriesContext(connection) as queries, outbox_context(timeout=0) as outcomes:
        with outbox_context():
            ids = [message(), message()]
            old.save()
    assert outcomes == dict.fromkeys(ids, "waiting")
    assert ["_await" in query["sql"] for query in queries].count(True) == 1


def test_it_waits_after_the_commit_of_a_transaction_around_it(relay):
    relay()
    with transaction.atomic():
        with outbox_context(timeout=LONG) as outcomes:
            id = message()
        assert outcomes == {}
    assert outcomes == {id: "published"}


def test_a_failed_wait_is_logged_and_leaves_the_message_to_the_relay(caplog):
    execute("ALTER FUNCTION outbox_await RENAME TO gone")
    try:
        with caplog.at_level(logging.WARNING), outbox_context() as outcomes:
            id = message()
    finally:
        execute("ALTER FUNCTION gone RENAME TO outbox_await")
    assert outcomes == {id: "waiting"} and count() == 1
    assert "function outbox_await(" in caplog.text and "does not exist" in caplog.text


def test_each_database_has_its_own_context(billing, settings):  # noqa: F811
    with outbox_context(timeout=0) as outcomes:
        with outbox_context(using="billing", timeout=0) as other:
            id = message()
            OutboxMessage(routing_key="a", payload={}).save(using="billing")
        assert list(other.values()) == ["waiting"] and id not in other
        assert outcomes == {}
    assert outcomes == {id: "waiting"}
    settings.DATABASE_ROUTERS = ["test_databases.ToBilling"]
    with outbox_context(timeout=0) as outcomes:
        id = message()
    assert outcomes == {id: "waiting"}


@pytest.mark.django_db
def test_in_a_test_s_transaction_it_does_not_wait(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        with outbox_context() as outcomes:
            id = message()
    assert outcomes == {id: "waiting"} and count() == 1
