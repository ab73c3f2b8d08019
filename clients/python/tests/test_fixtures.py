"""The pytest fixtures, as a project uses them."""
import pytest
import shop
from celery import chain

from cdc_relay.django.models import OutboxMessage


def test_assert_sent(assert_sent, outbox):
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42}, ordering_key="o42")
    assert assert_sent("orders.created", payload={"order_id": 42}, ordering_key="o42").task is None
    with pytest.raises(AssertionError, match="0 messages with"):
        assert_sent("orders.created", payload={"order_id": 43})
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42})
    with pytest.raises(AssertionError, match="2 messages with"):
        assert_sent("orders.created")


def test_assert_task_sent(assert_task_sent, outbox):
    shop.add.delay(1, y=2)
    assert_task_sent("shop.add", args=[1], kwargs={"y": 2})
    assert_task_sent(shop.add, args=(1,))
    with pytest.raises(AssertionError, match="sent: .*shop.add"):
        assert_task_sent("shop.mail")


def test_drain_outbox_runs_the_tasks_and_what_they_send(drain_outbox, outbox):
    chain(shop.add.s(1, 2), shop.add.s(3), shop.mail.s()).apply_async(link=shop.mail.s())
    OutboxMessage.objects.create(routing_key="orders.created", payload={"order_id": 42})
    drained = drain_outbox()
    assert [m.task for m in drained] == ["shop.add", None, "shop.add", "shop.mail", "shop.mail"]
    assert [m.args for m in drained if m.task == "shop.mail"] == [[6], [6]]
    assert len(outbox) == 0
