"""manage.py cdc_relay_events: notices of a real relay, by RabbitMQ, become Django signals."""
import os
import sys
import uuid

import pytest
import shop
from django.db import transaction
from kombu import Connection, Exchange, Queue

from cdc_relay.django.models import DeadLetter, OutboxMessage
from conftest import HANG, until
from proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = "published,rejected,dead_lettered"


@pytest.fixture
def broker(outbox):
    """A connection to the broker, with the queue for messages, and the exchange and queue of one test, which are removed after it."""
    with Connection(os.environ["CDC_RELAY_AMQP_URL"], connect_timeout=HANG) as connection:
        for queue in shop.app.amqp.queues.values():
            queue(connection.default_channel).declare()
        connection.name = f"events_{uuid.uuid4().hex[:8]}"
        yield connection
        channel = connection.channel()
        channel.queue_delete(connection.name)
        channel.exchange_delete(connection.name)
    DeadLetter.objects.all().delete()


def waiting(broker):
    """How many notices are in the queue and not with a consumer."""
    with broker.channel() as channel:
        return Queue(broker.name).bind(channel).queue_declare(passive=True).message_count


@pytest.fixture
def listen(start, broker):
    """listen() starts the command, and returns when it reads."""

    def run(*arguments, **environment):
        events = start(sys.executable, "events_listener.py", "--exchange", broker.name, *arguments, **environment)
        until(lambda: "reading notices" in events.said() or events.process.poll() is not None, events.said)
        return events

    return run


def create(routing_key=None):
    with transaction.atomic():
        return OutboxMessage.objects.create(exchange="", routing_key=routing_key or shop.app.conf.task_default_queue, payload={})


def test_receivers_get_what_became_of_each_message(listen, relay, broker):
    events = listen()
    relay(CDC_RELAY_EVENTS_EXCHANGE=broker.name, CDC_RELAY_EVENTS=EVENTS, CDC_RELAY_LOG_HEADERS="tenant")
    fine, lost = create(), create("nowhere")
    with transaction.atomic():
        task = shop.add.apply_async((1, 2), headers={"tenant": "acme"})
        dead = shop.add.apply_async((1, 2), queue=f"{broker.name}_nowhere")
    for line in (
        f"task shop.add {task.id} acme sent", f"task shop.add {dead.id} None failed", f"task shop.add {dead.id} None dead", "task None None None sent",
        f"sent {fine.pk} {fine.routing_key} 0 None UTC bool ",
        f"failed {lost.pk} nowhere 1 unroutable UTC bool unroutabl",
        f"dead {lost.pk} nowhere 1 retries_exhausted UTC bool unroutabl",
    ):
        until(lambda: line in events.said(), line)
    # The other receiver of `sent` raises.
    until(lambda: f"ZeroDivisionError: receiver of {fine.pk}" in events.said(), "the traceback")
    until(lambda: waiting(broker) == 0, "acknowledged")
    events.stop()
    assert events.process.returncode == 0


def test_the_command_survives_an_outage_of_the_broker(listen, relay, broker):
    proxy = Proxy(broker.hostname, broker.port)
    url = broker.as_uri(include_password=True).replace(f"{broker.hostname}:{broker.port}", f"127.0.0.1:{proxy.address[1]}")
    events = listen(SHOP_EVENTS_BROKER=url)
    proxy.stop()
    until(lambda: "no connection to RabbitMQ" in events.said(), "it notices the outage")
    relay(CDC_RELAY_EVENTS_EXCHANGE=broker.name, CDC_RELAY_EVENTS=EVENTS)
    message = create()
    until(lambda: waiting(broker) == 1, "the notice waits in the queue")
    proxy.start()
    until(lambda: f"sent {message.pk}" in events.said(), "the notice after the outage")
    proxy.stop()
    until(lambda: events.said().count("no connection to RabbitMQ") >= 2, "the second outage")
    events.stop()  # while it waits for the broker
    assert events.process.returncode == 0


def test_sigterm_ends_the_command_after_the_current_receiver(listen, relay, broker, tmp_path):
    gate = tmp_path / "gate"
    events = listen(SHOP_SLOW=shop.app.conf.task_default_queue, SHOP_GATE=str(gate))
    relay(CDC_RELAY_EVENTS_EXCHANGE=broker.name, CDC_RELAY_EVENTS=EVENTS)
    first, second = create(), create()
    until(lambda: "slow begins" in events.said() and waiting(broker) == 0 and not OutboxMessage.objects.exists(), "the receiver runs")
    events.process.terminate()
    gate.touch()
    assert events.process.wait(HANG) == 0
    said = events.said()
    assert said.count("slow begins") == said.count("slow ends") == 1 and said.count("sent ") == 1
    assert waiting(broker) == 1  # the other one, as new
    again = listen()
    until(lambda: again.said().count("sent ") == 1, "the other one")
    assert {str(first.pk), str(second.pk)} == {line.split()[1] for line in (said + again.said()).splitlines() if line.startswith("sent ")}


def test_existing_exchanges_and_queues_are_used_as_they_are(listen, relay, broker):
    exchange = Exchange(broker.name, "fanout", durable=False)
    Queue(broker.name, exchange, durable=True, expires=3600).bind(broker.default_channel).declare()
    events = listen()
    relay(CDC_RELAY_EVENTS_EXCHANGE=broker.name, CDC_RELAY_EVENTS=EVENTS)
    message = create()
    until(lambda: f"sent {message.pk}" in events.said(), "the notice")


def test_a_message_that_is_no_notice_is_dropped_and_logged(listen, broker):
    events = listen()
    notice = f'"event": "published", "message_id": "{uuid.uuid4()}", "at": "2026-01-02T03:04:05Z"'
    bodies = "[1]", '"x"', "{", '{"event": "other"}', '{"event": "published", "message_id": "x", "at": ""}', f'{{{notice}, "sender": 1}}', "[" * 100_000
    for body in bodies:
        broker.Producer().publish(body, exchange=broker.name, routing_key="a", content_type="application/json", content_encoding="utf-8")
    until(lambda: events.said().count("dropped a message that is no notice of the relay") == len(bodies), "the log")
    until(lambda: waiting(broker) == 0, "acknowledged")
    assert events.process.poll() is None


def test_what_the_broker_forbids_is_an_error(start, broker):
    events = start(sys.executable, "events_listener.py", "--exchange", "amq.not_allowed", "--queue", broker.name)
    assert events.process.wait(HANG) == 1
    assert "CommandError: cannot declare" in events.said()
