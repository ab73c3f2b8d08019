"""What install(app) writes to the outbox, without a relay and without a broker."""
import json
import pickle
import uuid
import warnings
import zlib
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest
import shop
from celery import Celery, chain, chord, group
from celery.app.trace import build_tracer
from celery.backends.cache import CacheBackend
from celery.exceptions import ImproperlyConfigured
from django.contrib import admin
from django.db import InterfaceError, OperationalError, connection, transaction
from kombu import Queue
from kombu.common import Broadcast

import cdc_relay
from cdc_relay.django.models import OutboxMessage
from cdc_relay.pytest_plugin import _run
from conftest import execute


def test_a_task_is_a_row_of_the_transaction(outbox):
    result = shop.add.delay(1, y=2)
    (sent,) = outbox
    assert (sent.task, sent.task_id, sent.args, sent.kwargs) == ("shop.add", result.id, [1], {"y": 2})
    assert str(sent.message_id) == result.id
    assert (sent.exchange, sent.routing_key) == ("", shop.app.conf.task_default_queue)
    assert sent.properties["correlation_id"] == result.id and sent.properties["reply_to"]
    assert sent.properties["content_type"] == "application/json" and sent.properties["delivery_mode"] == 2
    assert sent.available_at is None and sent.expires_at is None and sent.payload_bytes is None


def test_a_rollback_sends_nothing(outbox):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        shop.add.delay(1, 2)
        group(shop.add.s(1, 2), shop.add.s(3, 4)).delay()
        1 / 0
    assert len(outbox) == 0


def test_order_and_coalescing_are_columns_of_the_row_and_of_its_retries(outbox, drain_outbox):
    options = {"ordering_key": 7, "coalesce_key": uuid.UUID(int=5), "max_attempts": 2}
    shop.third_time.apply_async(**options)
    chain(shop.add.si(1, 2).set(ordering_key="first"), shop.add.si(3, 4).set(ordering_key="then")).delay()
    shop.add.delay(1, 2)
    columns = [(row.ordering_key, row.coalesce_key, row.max_attempts) for row in drain_outbox()]
    kept = ("7", str(uuid.UUID(int=5)), 2)
    assert columns == [kept, ("first", None, None), (None, None, None), kept, ("then", None, None), kept]
    with pytest.raises(ValueError, match="ordering_key needs the outbox"):
        shop.ping.apply_async(ordering_key="k")
    with pytest.raises(ValueError):
        shop.add.apply_async((1, 2), max_attempts="many")


def test_all_messages_of_a_task_are_found_by_its_id(outbox, drain_outbox):
    for task_id in (None, "order 7"):
        result = shop.retry_for_ever.apply_async(task_id=task_id, countdown=60)
        shop.retry_for_ever.apply_async(task_id="order 8", countdown=60)
        assert OutboxMessage.objects.of_task(result.id).count() == 1
        first, _ = drain_outbox(limit=2, run_tasks=False)
        _run(shop.app, first, propagate=False)
        (retry,) = outbox
        found = OutboxMessage.objects.of_task(result.id).get()
        assert found.headers["retries"] == 1 and found.message_id != first.message_id and str(found.message_id)[:28] == str(first.message_id)[:28]
        assert not OutboxMessage.objects.of_task(str(found.message_id)).exclude(pk=found.pk).exists()
        pages = admin.site._registry[OutboxMessage]
        assert pages.get_search_results(None, pages.get_queryset(None), f" {result.id} ")[0].get().message_id == found.message_id
        assert OutboxMessage.objects.of_task(result.id).delete()[0] == 1 and len(outbox) == 0


@pytest.mark.django_db(transaction=True)
def test_sending_outside_a_transaction_warns(drain_outbox):
    with pytest.warns(cdc_relay.OutsideTransactionWarning, match="shop.add"):
        shop.add.delay(1, 2)
    with warnings.catch_warnings(), transaction.atomic():
        warnings.simplefilter("error")
        shop.add.delay(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transaction.set_autocommit(False)
        shop.add.delay(1, 2)
        transaction.commit()
        transaction.set_autocommit(True)
    assert len(drain_outbox(run_tasks=False)) == 3


@pytest.mark.django_db(transaction=True)
def test_the_warning_names_the_line_that_sends(outbox):
    for send in (
        lambda: shop.add.delay(1, 2),
        lambda: shop.add.apply_async((1, 2)),
        lambda: shop.app.send_task("shop.add", (1, 2)),
        lambda: chain(shop.add.s(1, 2), shop.add.s(3)).delay(),
        lambda: group([shop.add.s(1, 2)]).delay(),
    ):
        with pytest.warns(cdc_relay.OutsideTransactionWarning) as warned:
            send()
        assert [warning.filename for warning in warned] == [__file__]


def break_connection():
    other = connection.copy()
    with connection.cursor() as cursor, other.cursor() as terminating:
        cursor.execute("SELECT pg_backend_pid()")
        terminating.execute("SELECT pg_terminate_backend(%s, 60000)", cursor.fetchone())
    other.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_a_broken_connection_is_replaced(drain_outbox):
    break_connection()
    shop.add.delay(1, 2)
    assert len(drain_outbox(run_tasks=False)) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_a_broken_connection_loses_no_part_of_a_transaction(drain_outbox):
    transaction.set_autocommit(False)  # not an atomic block
    shop.add.delay(1, 2)
    break_connection()
    with pytest.raises((InterfaceError, OperationalError)):
        shop.add.delay(3, 4)
    connection.close()
    assert len(drain_outbox(run_tasks=False)) == 0


def test_task_options_become_columns_and_properties(outbox, assert_task_sent):
    shop.mail.apply_async(("ann",), priority=9, queue="letters", task_id="own-id", headers={"tenant": "acme"}, link=shop.add.s(1))
    sent = assert_task_sent(shop.mail, args=["ann"], routing_key="letters")
    assert sent.properties["priority"] == 9
    assert sent.task_id == "own-id" and str(sent.message_id) != "own-id"
    assert sent.headers["tenant"] == "acme"
    assert sent.embed["callbacks"][0]["task"] == "shop.add"
    shop.mail.delay("bob")
    assert assert_task_sent("shop.mail", args=["bob"], routing_key=shop.app.conf.task_routes["shop.mail"]["queue"]).properties["priority"] == 5


def test_a_task_id_of_type_uuid(outbox):
    task_id = uuid.uuid4()
    shop.add.apply_async((1, 2), task_id=task_id)
    assert outbox[0].task_id == str(task_id) == str(outbox[0].message_id)


@pytest.mark.parametrize("names", [{"exclude": "metrics.*"}, {"context": "request_id"}])
def test_a_string_in_place_of_a_list_is_an_error(names):
    with pytest.raises(TypeError, match="lists of names"):
        cdc_relay.install(Celery("other", set_as_current=False), **names)


def test_protocol_1_is_an_error():
    app = Celery("other", set_as_current=False)
    app.conf.task_protocol = 1
    cdc_relay.install(app)
    with pytest.raises(ImproperlyConfigured, match="remove the setting task_protocol = 1"):
        app.send_task("billing.pay", [1])


def test_times_become_columns(outbox):
    now, at = datetime.now(timezone.utc), datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    shop.add.apply_async((1, 2), countdown=60, expires=120)
    shop.add.apply_async((1, 2), eta=at, expires=at + timedelta(hours=1))
    countdown, eta = outbox
    assert timedelta(seconds=59) < countdown.available_at - now < timedelta(seconds=70)
    assert timedelta(seconds=119) < countdown.expires_at - now < timedelta(seconds=130)
    assert eta.available_at == at and eta.expires_at == at + timedelta(hours=1)
    for sent in outbox:
        assert sent.headers["eta"] is None and sent.headers["expires"] and "expiration" not in sent.properties


def test_a_task_that_cannot_run_in_time_is_left_to_the_worker(outbox):
    """It revokes the task. A row that expires in the outbox would become a dead letter, and the result stay PENDING."""
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    shop.add.apply_async((1, 2), expires=past)
    shop.add.apply_async((1, 2), expires=-1, countdown=60)
    for sent in outbox:
        assert sent.headers["expires"] and sent.available_at is None and sent.expires_at is None
        assert "expiration" not in sent.properties
    shop.add.apply_async((1, 2), expires=60, countdown=120)
    late = outbox[2]
    assert late.available_at > datetime.now(timezone.utc) + timedelta(seconds=60) and late.expires_at is None


def test_expiration_becomes_a_property(outbox):
    for expiration in (30, 1.5, "2"):
        shop.add.apply_async((1, 2), expiration=expiration)
    shop.add.apply_async((1, 2), expiration=30, expires=60)
    assert [sent.properties.get("expiration") for sent in outbox] == [30000, 1500, 2000, None]
    for wrong in (-1, 2**32, "soon"):
        with pytest.raises(ValueError):
            shop.add.apply_async((1, 2), expiration=wrong)


def test_chain_group_and_chord_become_rows(outbox):
    chain(shop.add.s(1, 2), shop.add.s(3)).delay()
    assert outbox[0].embed["chain"][0]["task"] == "shop.add"
    group(shop.add.s(1, 1), shop.add.s(2, 2)).delay()
    assert [m.args for m in outbox][1:] == [[1, 1], [2, 2]] and outbox[1].headers["group"] == outbox[2].headers["group"]
    chord([shop.add.s(5, 5), shop.add.s(6, 6)])(shop.total.s())
    assert {m.task for m in list(outbox)[3:]} == {"shop.add", "celery.chord_unlock"}


def test_binary_and_compressed_bodies_are_stored(outbox):
    shop.add.apply_async((1, 2), serializer="pickle")
    shop.add.apply_async((1, 2), compression="zlib")
    pickled, compressed = outbox
    assert pickled.payload is None and pickle.loads(bytes(pickled.payload_bytes))[0] == (1, 2)
    assert pickled.properties["content_type"] == "application/x-python-serialize" and pickled.properties["content_encoding"] == "binary"
    assert zlib.decompress(bytes(compressed.payload_bytes)).startswith(b"[[1, 2]")
    assert (pickled.args, compressed.args) == ([1, 2], [1, 2])
    assert compressed.headers["compression"] == "application/x-gzip"
    shop.mail.delay("Grüße ☃")
    assert outbox[2].args == ["Grüße ☃"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_without_a_json_form_are_stored(outbox, number):
    shop.mail.delay(number)
    (sent,) = outbox
    assert sent.payload is None and sent.properties["content_type"] == "application/json"
    assert json.loads(bytes(sent.payload_bytes))[0] == [pytest.approx(number, nan_ok=True)]


def test_characters_that_jsonb_cannot_store_are_replaced(outbox):
    text = "NaN \0 caf\udce9 \\u0000 \\\0 😀"
    shop.mail.apply_async((text,), headers={"file": text})
    (sent,) = outbox
    assert sent.args == [text] and sent.payload_bytes is None
    assert sent.headers["file"] == "NaN \ufffd caf\ufffd \\u0000 \\\ufffd 😀"


def test_the_signal_is_sent_for_each_row(outbox):
    heard = []

    def hear(sender, task_id, message_id, headers, **_):
        heard.append((sender, task_id, message_id, headers["task"]))

    cdc_relay.created.connect(hear)
    try:
        result = shop.add.delay(1, 2)
    finally:
        cdc_relay.created.disconnect(hear)
    assert heard == [("shop.add", result.id, result.id, "shop.add")]


def test_sending_needs_neither_broker_nor_django():
    statements = []
    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    cdc_relay.install(
        app, execute=lambda sql, parameters: statements.append((sql, parameters)), execute_apart=pytest.fail, in_transaction=lambda: True,
        table="billing.outbox",
    )  # fmt: skip
    app.send_task("billing.pay", [1])
    assert statements[0][0].startswith("INSERT INTO billing.outbox (message_id, exchange,")
    assert statements[0][1][2:4] == ["celery", '[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]']


@pytest.mark.django_db(transaction=True)
def test_without_django_a_retry_outlives_its_transaction():
    ours, apart = connection.copy(), connection.copy()
    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    cdc_relay.install(
        app, execute=lambda *args: ours.cursor().execute(*args), execute_apart=lambda *args: apart.cursor().execute(*args),
        in_transaction=lambda: not ours.get_autocommit(),
    )  # fmt: skip

    @app.task(name="other.again", bind=True)
    def again(self):
        ours.set_autocommit(False)
        try:
            app.send_task("other.rolled_back")
            raise self.retry(countdown=1)
        finally:
            ours.rollback()
            ours.set_autocommit(True)

    with closing(ours), closing(apart):
        with pytest.warns(cdc_relay.OutsideTransactionWarning):
            again.apply_async()
        as_a_worker_does(app, again)
    assert execute("DELETE FROM outbox RETURNING headers->>'task', headers->>'retries'") == [("other.again", "0"), ("other.again", "1")]


def as_a_worker_does(app, task):
    """Runs a task, and returns its state and its exception."""
    state = build_tracer(task.name, task, app=app)(str(uuid.uuid4()), (), {}, {"id": str(uuid.uuid4()), "delivery_info": {}})[1]
    return state and (state.state, state.retval)


@pytest.mark.parametrize("given", ["execute", "execute_apart", "in_transaction"])
def test_without_django_all_functions_are_needed(given):
    with pytest.raises(TypeError, match="execute, execute_apart and in_transaction are needed"):
        cdc_relay.install(Celery("other", set_as_current=False), **{given: pytest.fail})


@pytest.mark.django_db(transaction=True)
def test_a_chord_that_a_rollback_would_lose_fails_the_task(outbox):
    class Backend(CacheBackend):
        __module__ = "django_celery_results.backends.database"  # it counts the results of a chord in a table

    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    app._get_backend = lambda: Backend(app=app, backend="memory://")
    cdc_relay.install(app)

    @app.task(name="other.replaced", bind=True)
    @transaction.atomic
    def replaced(self):
        raise self.replace(group(app.signature("other.a"), app.signature("other.b")))

    state, error = as_a_worker_does(app, replaced)
    assert state == "FAILURE" and "call self.replace outside the transaction" in str(error)
    assert len(outbox) == 0


def test_excluded_tasks_go_to_the_broker(outbox):
    cdc_relay.declare_queues(shop.app)
    shop.ping.delay()
    assert len(outbox) == 0
    with shop.app.connection_for_read() as connection, connection.SimpleQueue(shop.app.conf.task_default_queue) as queue:
        message = queue.get(timeout=60)
        message.ack()
    assert message.headers["task"] == "direct.ping"


def test_declare_queues_makes_no_queue_for_a_broadcast():
    name = shop.app.conf.task_default_queue + "_broadcast"
    app = Celery("other", broker=shop.app.conf.broker_url, set_as_current=False)
    broadcast = Broadcast(name)
    app.conf.task_queues = [Queue(name + "_queue", auto_delete=True), broadcast]
    cdc_relay.declare_queues(app)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare(name + "_queue", passive=True)
        connection.default_channel.exchange_declare(name, "fanout", passive=True)
        with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
            connection.default_channel.queue_declare(broadcast.name, passive=True)
        connection.channel().queue_delete(name + "_queue")
        connection.channel().exchange_delete(name)
