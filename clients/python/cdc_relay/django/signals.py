"""The outcomes of messages, as Django signals. `manage.py cdc_relay_events` sends them from the notices of the relay.

The sender is OutboxMessage. Receivers get the fields of the notice: message_id, routing_key, exchange, attempts, at, reason,
last_error, possible_duplicate, headers, and id, the number of the row. reason and last_error of `sent` are None. task_name and
task_id are those of a Celery task, or None; headers has the headers that the relay's --log-headers names.
"""
from django.dispatch import Signal

#: RabbitMQ has confirmed the message.
sent = Signal()
#: RabbitMQ rejected the message. It is tried again, or is dead-lettered next.
failed = Signal()
#: The message is in the dead-letter table.
dead_lettered = Signal()

BY_EVENT = {"published": sent, "rejected": failed, "dead_lettered": dead_lettered}
