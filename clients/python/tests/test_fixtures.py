"""The pytest fixtures, as a project uses them."""
import uuid
from datetime import datetime, timezone

import celery
import pytest
import shop
from celery import chain, chord
from django.db import connection

from cdc_relay.django.models import OutboxMessage


def test_assert_sent(assert_sent, outbox):
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42}, ordering_key="o42")
    assert assert_sent("orders.created", payload={"order_id": 42}, ordering_key="o42").task is None
    with pytest.raises(AssertionError, match="0 messages with"):
        assert_sent("orders.created", payload={"order_id": 43})
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42})
    with pytest.raises(AssertionError, match="2 messages with"):
        assert_sent("orders.created")
    with pytest.raises(TypeError, match="a message has no 'queue', only: .*routing_key"):
        assert_sent("orders.created", queue="orders")
    OutboxMessage.objects.create(routing_key="orders.paid", payload={}, headers={"tenant": "acme", "n": 1})
    assert_sent("orders.paid", headers={"tenant": "acme"})
    with pytest.raises(AssertionError, match="0 messages with"):
        assert_sent("orders.paid", headers={"tenant": None, "other": None})


def test_assert_task_sent(assert_task_sent, outbox):
    shop.add.delay(1, y=2)
    assert_task_sent("shop.add", args=[1], kwargs={"y": 2})
    assert_task_sent(shop.add, args=(1,))
    with pytest.raises(AssertionError, match=r"sent: \[<shop.add\(1, y=2\)>\]"):
        assert_task_sent("shop.mail")
    shop.mail.apply_async(("ann",), priority=7, headers={"tenant": "acme"})
    assert_task_sent("shop.mail", headers={"tenant": "acme"}, properties={"priority": 7})


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.skipif(celery.VERSION < (5, 3), reason="its JSON turns them into text")
def test_arguments_have_the_types_that_a_worker_gets(assert_task_sent, serializer):
    arguments = (uuid.uuid4(), datetime.now(timezone.utc))
    shop.mail.apply_async((arguments,), serializer=serializer)
    (to,) = assert_task_sent("shop.mail").args
    assert tuple(to) == arguments


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_messages_of_earlier_tests_are_gone(request):
    shop.mail.delay("of an earlier test")
    assert len(request.getfixturevalue("outbox")) == 0


def test_drain_outbox_runs_the_tasks_and_what_they_send(drain_outbox, outbox):
    chain(shop.add.s(1, 2), shop.add.s(3), shop.mail.s()).apply_async(link=shop.mail.s())
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42})
    drained = drain_outbox()
    assert [m.task for m in drained] == ["shop.add", None, "shop.add", "shop.mail", "shop.mail"]
    assert [m.args for m in drained if m.task == "shop.mail"] == [[6], [6]]
    assert len(outbox) == 0


def test_a_task_sent_by_sql_and_a_message_that_only_has_a_header_task(assert_sent, assert_task_sent, drain_outbox):
    with connection.cursor() as cursor:
        cursor.execute("SELECT outbox_celery('shop.add', args => '[1, 2]', queue => 'sums')")
    OutboxMessage.objects.create(routing_key="todo", payload={"a": 1}, headers={"task": "clean"})
    assert_task_sent("shop.add", args=[1, 2], kwargs={}, routing_key="sums")
    assert assert_sent("todo", payload={"a": 1}).task is None
    assert len(drain_outbox()) == 2


def test_drain_outbox_runs_retries(drain_outbox):
    shop.third_time.delay()
    assert [m.task for m in drain_outbox()] == ["shop.third_time"]


def test_drain_outbox_runs_tasks_of_any_serializer(drain_outbox):
    shop.mail.apply_async(("ann",), serializer="pickle", compression="zlib", link=shop.mail.s())
    shop.mail.delay(float("inf"))
    assert [m.args for m in drain_outbox()] == [["ann"], [float("inf")], ["ann"]]


def test_drain_outbox_raises_the_error_of_a_task(drain_outbox):
    shop.add.delay(1, "2")
    with pytest.raises(TypeError, match="unsupported operand"):
        drain_outbox()


def test_drain_outbox_runs_the_header_of_a_chord(drain_outbox):
    chord([shop.add.s(1, 2), shop.add.s(3, 4)])(shop.total.s())
    assert sorted(m.task for m in drain_outbox()) == ["celery.chord_unlock", "shop.add", "shop.add"]
