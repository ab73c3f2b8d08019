"""Sends the signals of cdc_relay.django.signals, from the notices of a relay."""
import json
import logging
import signal
import uuid

from celery import current_app
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.dateparse import parse_datetime
from kombu import Connection, Exchange, Queue
from kombu.mixins import ConsumerMixin

from ....celery import is_declared
from ...models import OutboxMessage
from ...signals import BY_EVENT

logger = logging.getLogger("cdc_relay.events")
HEARTBEAT = 60  # seconds
# Notices are sent at most once anyway. Without a bound, a queue that nobody reads would fill the broker's disk.
MOST_WAITING = 100_000


class Command(BaseCommand):
    help = (
        "Sends the Django signals sent, failed and dead_lettered of cdc_relay.django.signals, until SIGTERM. The relay must run with "
        "--events-exchange and --events published,rejected,dead_lettered, or some of these."
    )

    def add_arguments(self, parser):
        parser.add_argument("--exchange", default="cdc_relay_events", help="--events-exchange of the relay. Default: %(default)s")
        parser.add_argument("--queue", help="The queue of this application. Default: the name of the exchange")

    def handle(self, *, exchange, queue, **options):
        url = getattr(settings, "CDC_RELAY_BROKER_URL", None)
        broker = Connection(url, heartbeat=HEARTBEAT) if url else current_app.connection_for_read(heartbeat=HEARTBEAT)
        listener = Listener(broker, exchange, queue or exchange)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, listener.stop)
        listener.run()


class Listener(ConsumerMixin):
    """ConsumerMixin connects again after an outage, with increasing pauses."""

    def __init__(self, connection, exchange, queue):
        self.connection, self.connected = connection, False
        self.exchange = Exchange(exchange, "topic")
        self.queue = Queue(queue, self.exchange, routing_key="#", max_length=MOST_WAITING)

    def get_consumers(self, Consumer, channel):
        client = channel.connection.client
        try:
            for entity in (self.exchange, self.queue):
                if not is_declared(entity, client):  # an existing one may have any arguments
                    with client.channel() as other:
                        entity(other).declare() if entity is self.exchange else entity(other).queue_declare()
            self.queue(channel).queue_bind()
        except client.channel_errors as error:
            raise CommandError(f"cannot declare {entity}: {error}") from error
        return [Consumer([self.queue], on_message=self.on_message, prefetch_count=20, auto_declare=False)]

    def on_connection_error(self, exc, interval):
        logger.warning("no connection to RabbitMQ; next attempt in %s s: %s", interval, exc)

    def on_consume_ready(self, connection, channel, consumers, **kwargs):
        logger.info("reading notices of events from queue %s", self.queue.name)

    def create_connection(self):
        self.connected = False
        return super().create_connection()

    def on_connection_revived(self):
        self.connected = True

    def on_message(self, message):
        if self.should_stop:
            return  # it arrived before the broker got the end of the consumer, and goes back to the queue
        close_old_connections()  # as Django does between requests
        send(message)
        close_old_connections()
        message.ack()

    def stop(self, *_):
        """Ends the program after the current notice, within a second. Other notices stay in the queue."""
        self.should_stop = True
        # With a connection, an exception here could cut a frame in two, and closing would wait for an answer for ever.
        if not self.connected:
            raise SystemExit


def send(message):
    """Calls the receivers of one notice. Django logs what they raise."""
    try:
        notice = json.loads(message.body)
        to = BY_EVENT[notice.pop("event")]
        notice["message_id"] = uuid.UUID(notice["message_id"])
        notice["at"] = parse_datetime(notice["at"])
        notice["headers"] = notice.get("headers") or {}
        notice.update(task_name=notice["headers"].get("task"), task_id=notice["headers"].get("id"))
        to.send_robust(sender=OutboxMessage, **{"reason": None, "last_error": None, **notice})
    except Exception:
        logger.exception("dropped a message that is no notice of the relay: %.200r", message.body)
