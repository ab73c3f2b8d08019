"""The pytest fixtures, as a project uses them."""
import uuid
from contextlib import closing
from datetime import datetime, timezone

import celery
import pytest
import shop
from celery import chain, chord, group
from django.db import connection

from cdc_relay.django.models import DeadLetter, OutboxMessage
from conftest import execute


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
    execute("SELECT outbox_celery('shop.add', args => '[1, 2]', queue => 'sums')")
    OutboxMessage.objects.create(routing_key="todo", payload={"a": 1}, headers={"task": "clean"})
    for value in [1], "x", 5, True, ["task", "id"]:
        OutboxMessage.objects.create(routing_key="odd", payload={}, headers=value, properties=value)
    OutboxMessage.objects.create(routing_key="odd", payload={}, headers={"task": 1, "id": 1}, properties=5)
    assert_task_sent("shop.add", args=[1, 2], kwargs={}, routing_key="sums")
    assert assert_sent("todo", payload={"a": 1}, headers={"task": "clean"}).task is None
    assert len(drain_outbox()) == 8


def test_drain_outbox_runs_retries(drain_outbox):
    result = shop.third_time.delay()
    assert [(m.task, m.headers["retries"]) for m in drain_outbox()] == [("shop.third_time", n) for n in range(3)]
    assert result.get() == 2


def test_drain_outbox_ends_with_an_error_if_a_task_never_ends(drain_outbox):
    shop.retry_for_ever.delay()
    with pytest.raises(AssertionError, match="more than 50 messages; the last is <shop.retry_for_ever"):
        drain_outbox(limit=50)


def test_drain_outbox_runs_tasks_of_any_serializer(drain_outbox):
    shop.mail.apply_async(("ann",), serializer="pickle", compression="zlib", link=shop.mail.s())
    shop.mail.delay(float("inf"))
    assert [m.args for m in drain_outbox()] == [["ann"], [float("inf")], ["ann"]]


def test_drain_outbox_raises_the_error_of_a_task(drain_outbox):
    result = shop.add.delay(1, "2")
    with pytest.raises(TypeError, match="unsupported operand"):
        drain_outbox()
    assert result.state == "FAILURE"
    with pytest.raises(TypeError, match="unsupported operand"):
        result.get()


def test_results_of_drained_tasks(drain_outbox):
    one, later = shop.add.delay(1, 2), chain(shop.add.s(1, 2), shop.add.s(3)).delay()
    both, replaced = group(shop.add.s(1, 1), shop.add.s(2, 2)).delay(), shop.add_later.delay(2, 3)
    total = chord([shop.add.s(1, 2), shop.add.s(3, 4)])(shop.total.s())
    assert one.state == "PENDING" and not one.ready()
    with pytest.raises(celery.exceptions.TimeoutError, match="PENDING: call drain_outbox"):
        one.get()
    with pytest.raises(celery.exceptions.TimeoutError, match="call drain_outbox"):
        both.get()
    drain_outbox()
    assert one.get() == 3 and one.successful() and shop.app.AsyncResult(one.id).result == 3
    assert (later.get(), both.get(), replaced.get(), total.get()) == (6, [2, 4], 5, 10)


def test_drain_outbox_without_propagate_keeps_failures_in_the_results(drain_outbox):
    failed, linked = shop.add.apply_async((1, "2"), link_error=shop.mail.si("failed")), shop.add.delay(1, 2)
    last = chain(shop.add.s(1, "2"), shop.add.s(3)).delay()
    total = chord([shop.add.s(1, 2), shop.add.s(1, "2")])(shop.total.s())
    assert "shop.mail" in [m.task for m in drain_outbox(propagate=False)]
    assert (failed.state, linked.state) == ("FAILURE", "SUCCESS") and "unsupported operand" in failed.traceback
    for result in (failed, last, total):
        with pytest.raises(Exception, match="unsupported operand"):
            result.get()


@pytest.mark.parametrize("task", [shop.retry_in_transaction, shop.replace_in_transaction.s(2, 3), shop.replace_by_chord_in_transaction])
def test_retries_and_replaced_tasks_of_a_transaction_stay_in_that_of_the_test(drain_outbox, outbox, task):
    result = task.delay()
    drained = drain_outbox()
    assert result.get() == {"shop.retry_in_transaction": 1, "shop.replace_in_transaction": 15}.get(drained[0].task, 6)
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox")
        assert cursor.fetchone() == (0,)


def test_a_drained_task_has_its_headers(drain_outbox):
    result = shop.header.apply_async(("tenant",), headers={"tenant": "acme"})
    drain_outbox()
    assert result.get() == "acme"


@pytest.mark.parametrize("options, state", [({"expires": -1}, "REVOKED"), ({"ignore_result": True}, "PENDING")])
def test_an_expired_task_is_revoked_and_one_that_ignores_its_result_has_none(drain_outbox, options, state):
    result = shop.add.apply_async((1, 2), **options)
    drain_outbox()
    assert result.state == state


def test_the_result_of_a_task_with_an_id_of_its_own(drain_outbox):
    shop.add.apply_async((1, 2), task_id="same-id")
    drain_outbox()
    assert shop.app.AsyncResult("same-id").state == "SUCCESS"


def test_results_of_drained_tasks_are_only_of_one_test(drain_outbox):
    assert shop.app.AsyncResult("same-id").state == "PENDING"


def test_other_tests_have_the_app_s_own_result_backend():
    assert type(shop.app.backend).__name__ == "FilesystemBackend"


def test_a_rejected_message_is_published_later(outbox, drain_outbox):
    outbox.reject(shop.add, times=2)
    result = shop.add.delay(1, 2)
    shop.mail.delay("ann")
    assert [(m.task, m.attempts, m.last_error) for m in drain_outbox()] == [
        ("shop.add", 2, "unroutable: rejected by the test"), ("shop.mail", 0, None),
    ]  # fmt: skip
    assert result.get() == 3


def test_the_last_rejection_makes_a_dead_letter(outbox, drain_outbox):
    outbox.reject("orders.created", times=3)
    outbox.reject("shop.add", times=6)
    OutboxMessage.objects.create(routing_key="orders.created", payload={}, max_attempts=3)
    result = shop.add.delay(1, 2)
    assert drain_outbox() == [] and len(outbox) == 0 and result.state == "PENDING"
    order, task = DeadLetter.objects.order_by("attempts")
    assert (order.routing_key, order.attempts, order.failure_reason) == ("orders.created", 3, "retries_exhausted")
    assert (task.task, task.attempts, task.last_error) == ("shop.add", 6, "unroutable: rejected by the test")
    task.requeue()
    assert [m.attempts for m in drain_outbox()] == [0] and result.get() == 3


def test_a_row_without_a_limit_is_never_dead(outbox, drain_outbox):
    outbox.reject("orders.created", times=20)
    OutboxMessage.objects.create(routing_key="orders.created", payload={}, max_attempts=0)
    assert [m.attempts for m in drain_outbox()] == [20]


def test_other_messages_are_not_rejected(outbox, drain_outbox):
    outbox.reject("shop.add", times=100)
    shop.mail.delay("ann")
    assert len(drain_outbox()) == 1
