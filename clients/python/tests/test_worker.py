"""A real worker behind a real relay, and a real beat."""
import signal
import sys

import pytest
import shop
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from django.db import transaction

import cdc_relay
from conftest import HANG, celery_worker, execute, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def queues(django_db_setup):
    shop.app.amqp.queues.select_add(shop.app.conf.task_routes["shop.mail"]["queue"])
    cdc_relay.declare_queues(shop.app)


def waiting():
    return execute("SELECT count(*) FROM outbox")[0][0]


def until_empty():
    until(lambda: not waiting(), "the relay empties the outbox")


def send(signature):
    with transaction.atomic():
        return signature.delay()


def test_results_arrive(relay, worker):
    relay()
    assert send(shop.add.s(1, 2)).get(timeout=HANG) == 3
    assert send(shop.mail.s("ann")).get(timeout=HANG) == "ann"
    assert send(chain(shop.add.s(1, 2), shop.add.s(3), shop.add.s(4))).get(timeout=HANG) == 10
    assert send(group(shop.add.s(1, 1), shop.add.s(2, 2))).get(timeout=HANG) == [2, 4]
    assert send(shop.add.signature((1, 2), serializer="pickle", compression="zlib")).get(timeout=HANG) == 3
    for argument in (float("inf"), "a\0b", "caf\udce9.txt"):
        assert send(shop.mail.s(argument)).get(timeout=HANG) == argument
    assert send(shop.add.signature((1, 2), expiration=600)).get(timeout=HANG) == 3
    for value in (-5, -(2**53), 2**63 - 1, -0.5, {"deep": [-7]}):
        assert send(shop.header.signature(("offset",), headers={"offset": value})).get(timeout=HANG) == value
    assert send(shop.third_time.s()).get(timeout=HANG) == 2
    assert send(shop.add_later.s(2, 3)).get(timeout=HANG) == 5
    assert send(shop.retry_in_transaction.s()).get(timeout=HANG) == 1
    assert send(shop.replace_in_transaction.s(2, 3)).get(timeout=HANG) == 15
    assert sorted(send(shop.replace_by_group_in_transaction.s()).get(timeout=HANG)) == [2, 3, 4, 5]
    assert send(shop.replace_by_chord_in_transaction.s()).get(timeout=HANG) == 6
    assert send(chain(shop.replace_by_chord_in_transaction.s(), shop.add.s(10))).get(timeout=HANG) == 16
    with transaction.atomic():
        body = chord([shop.add.s(1, 1), shop.add.s(2, 2)])(shop.total.s())
    assert body.get(timeout=HANG) == 6
    assert execute("SELECT count(*), max(last_error) FROM outbox_dead_letter") == [(0, None)]


def test_the_context_reaches_retries_and_the_next_tasks(relay, worker):
    structlog = pytest.importorskip("structlog")
    relay()
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        result = send(chain(shop.add.s(1, 2), shop.request_id_at_the_second_attempt.s()))
    assert result.get(timeout=HANG) == "r1"


def test_results_arrive_by_reply_to(relay, start):
    relay()
    queue = shop.app.conf.task_default_queue + "_rpc"
    celery_worker(start, queue, SHOP_RESULTS="rpc://")
    client = start(sys.executable, "rpc_client.py", SHOP_QUEUE=queue, SHOP_RESULTS="rpc://")
    client.process.wait(HANG)
    assert "result: 42" in client.said()


def test_a_task_sent_by_sql_runs(relay, worker):
    """docs/functions.md: outbox_celery and outbox_await."""
    relay()
    sql = "SELECT outbox_celery('shop.add', args => '[1]', kwargs => '{\"y\": 2}', queue => %s, expires => now() + '1 h', countdown => 0.1)"
    ((task_id,),) = execute(sql, [shop.app.conf.task_default_queue])
    assert execute("SELECT outbox_await(%s, '2 min')", [task_id]) == [("published",)]
    assert shop.app.AsyncResult(str(task_id)).get(timeout=HANG) == 3


def test_a_rollback_reaches_no_worker(relay, worker):
    relay()
    with transaction.atomic():
        lost = shop.add.delay(1, 2)
        transaction.set_rollback(True)
    assert send(shop.add.s(3, 4)).get(timeout=HANG) == 7  # it was sent later, and has arrived
    assert lost.state == "PENDING"


def test_a_task_with_a_countdown_waits_in_the_outbox(relay, worker):
    relay()
    with transaction.atomic():
        later = shop.add.apply_async((1, 2), countdown=3600)
    assert send(shop.add.s(3, 4)).get(timeout=HANG) == 7
    assert waiting() == 1
    execute("UPDATE outbox SET available_at = now()")
    assert later.get(timeout=HANG) == 3


def test_a_task_that_cannot_run_in_time_is_revoked(relay, worker):
    relay()
    for options in ({"expires": -1}, {"expires": -1, "countdown": 3600}, {"expires": 0.1, "countdown": 0.2}):
        result = send(shop.add.signature((1, 2), **options))
        with pytest.raises(TaskRevokedError):
            result.get(timeout=HANG)
        assert result.state == "REVOKED"


def test_a_task_that_expires_in_the_outbox_is_a_dead_letter(relay, worker):
    result = send(shop.add.signature((1, 2), expires=3600))
    execute("UPDATE outbox SET expires_at = now()")
    relay()
    until_empty()
    assert execute("DELETE FROM outbox_dead_letter RETURNING failure_reason") == [("expired",)]
    assert result.state == "PENDING"


def test_a_killed_relay_loses_no_task(relay, worker):
    first = relay()
    assert send(shop.add.s(0, 0)).get(timeout=HANG) == 0
    results = [send(shop.add.s(n, n)) for n in range(20)]
    first.stop(signal.SIGKILL)
    results += [send(shop.add.s(n, n)) for n in range(20, 40)]
    relay()
    assert [r.get(timeout=HANG) for r in results] == [2 * n for n in range(40)]
    until_empty()


def test_beat_needs_no_broker_and_survives_a_broken_connection(start, tmp_path, drain_outbox, outbox):
    beat = start(
        sys.executable, "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--schedule", str(tmp_path / "schedule"),
        SHOP_BROKER="amqp://127.0.0.1:1//", PGAPPNAME="beat",
    )  # fmt: skip

    until(lambda: len(outbox) > 0, "beat sends a task")
    assert execute("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = 'beat'") == [(1,)]
    sent = len(outbox)
    until(lambda: len(outbox) > sent, "it sends another one")
    beat.stop()
    assert "OutsideTransactionWarning" not in beat.said()
    assert {message.task for message in drain_outbox(run_tasks=False)} == {"shop.add"}
