"""Uses the table of the setting CDC_RELAY_TABLE."""
import shop
from django.db import connection, transaction

from cdc_relay.django.models import DeadLetter, OutboxMessage

with transaction.atomic():
    shop.add.delay(1, 2)
with connection.cursor() as cursor:
    cursor.execute(
        """INSERT INTO billing."Events_dead_letter" (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
        VALUES (1000, now(), gen_random_uuid(), 1, 1, 'dead', 'expired')"""
    )
assert DeadLetter.objects.get().requeue() and not DeadLetter.objects.exists()
OutboxMessage.objects.create(routing_key="created")
print("keys:", *sorted(message.routing_key for message in OutboxMessage.objects.all()))
