"""cdc_relay.inbox: a task that arrives again, also after its worker was killed, does its work once."""
import os
import re
import sys
import uuid
from contextlib import closing, contextmanager

import paying
import psycopg2
import pytest
import shop
from conftest import HANG, execute, here

import cdc_relay
from cdc_relay.inbox import once

# The table of the consumers' page.
INBOX = re.search(r"CREATE TABLE inbox .*?;\nCREATE INDEX .*?;", (here.parents[2] / "docs/consumers.md").read_text())[0]


def payments():
    return execute("SELECT count(*) FROM payment")[0][0]


@pytest.fixture
def inbox(db):
    execute(f"CREATE TABLE payment (); {INBOX}")
    yield
    execute("DROP TABLE payment, inbox")


def test_a_task_with_the_same_id_runs_once(inbox):
    for id in str(uuid.uuid4()), "order-7", 7:
        assert [paying.pay_simply.apply(task_id=id).get() for _ in range(3)] == ["paid", None, None]
    assert payments() == 3
    id = str(uuid.uuid4())
    paying.pay_simply.apply(task_id=id)
    assert execute(f"SELECT count(*) FROM inbox WHERE message_id = '{id}'") == [(1,)]


def test_a_retry_and_a_replaced_task_run(inbox, drain_outbox):
    retried, replaced = paying.pay_at_the_second_attempt.delay(), paying.pay_by_another_task.delay()
    drain_outbox()
    assert (retried.get(), replaced.get()) == ("paid", "paid") and payments() == 2
    paying.pay_by_another_task.apply_async(task_id=replaced.id)  # the worker died after it had sent the other task
    drain_outbox()
    assert payments() == 2


def test_a_retry_does_nothing_if_the_redelivered_task_was_first(inbox, drain_outbox):
    """The worker died after it had sent the retry, before it acknowledged the task."""
    failures = [ValueError("no money")]

    @shop.app.task(name="paying.pay_if_rich", bind=True, autoretry_for=[ValueError], default_retry_delay=0)
    @once
    def pay_if_rich(self):
        paying.insert_payment()
        if failures:
            raise failures.pop()

    for _ in range(2):
        pay_if_rich.apply_async(task_id="7")
    assert [message.headers["retries"] for message in drain_outbox()] == [0, 0, 1]
    assert payments() == 1


def test_a_task_that_is_called_as_a_function_always_runs(inbox):
    assert paying.pay_simply() == paying.pay_simply() == "paid"
    assert payments() == 2 and execute("SELECT count(*) FROM inbox") == [(0,)]


def test_celery_knows_the_parameters(db):
    """Also `redact`, which finds arguments by their names."""
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        paying.pay_simply.delay("too many")
    with pytest.raises(TypeError, match="missing"):
        paying.pay.delay(True)


def test_without_django():
    with closing(psycopg2.connect(os.environ["CDC_RELAY_DATABASE_URL"])) as other:
        with other.cursor() as cursor:
            cursor.execute(INBOX.replace("TABLE inbox", "TEMP TABLE handled").replace("ON inbox", "ON handled"))
        other.commit()

        @contextmanager
        def begin():
            with other, other.cursor() as cursor:
                yield cursor

        @shop.app.task(name="paying.pay_without_django")
        @once(begin=begin, table="handled")
        def pay():
            return "paid"

        assert [pay.apply(task_id="7").get() for _ in range(2)] == ["paid", None]


@pytest.fixture
def paying_worker(start):
    """paying_worker(pool) starts a worker on a queue of its own, paying_worker.queue."""
    queue = f"{shop.app.conf.task_default_queue}_paying"
    shop.app.amqp.queues.select_add(queue)
    cdc_relay.declare_queues(shop.app)

    def work(pool):
        return start(
            sys.executable, "-m", "celery", "-A", "paying", "worker", "-P", pool, "-c", "1", "-l", "INFO", "-Q", queue,
            "--without-gossip", "--without-mingle", "--without-heartbeat",
        )  # fmt: skip

    work.queue = queue
    return work


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pool", ["solo", "prefork"])
@pytest.mark.parametrize("before_commit", [True, False])
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_a_killed_worker_pays_once(relay, paying_worker, inbox, tmp_path, pool, before_commit):
    relay()
    first = paying_worker(pool)
    marker = tmp_path / "killed"
    result = paying.pay.apply_async((before_commit, str(marker)), queue=paying_worker.queue)
    if pool == "solo":
        assert first.process.wait(HANG) == -9
        assert payments() == (0 if before_commit else 1)
        paying_worker(pool)
    assert result.get(timeout=HANG) == ("paid" if before_commit else None)
    assert marker.exists() and payments() == 1
    assert execute("SELECT message_id FROM inbox") == [(uuid.UUID(result.id),)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_a_task_sees_the_mark_of_the_relay(relay, paying_worker, outbox):
    def send():
        return shop.header.apply_async(("x-possible-duplicate",), queue=paying_worker.queue)

    paying_worker("solo")
    first = relay()
    send().get(timeout=HANG)  # it may be marked: the relay does not know if another one has published it
    assert send().get(timeout=HANG) is None
    first.stop()
    marked = send()
    execute("UPDATE outbox SET possible_duplicate = true")
    relay()
    assert marked.get(timeout=HANG) is True
