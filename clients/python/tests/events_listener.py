"""manage.py cdc_relay_events with receivers. The one of the routing key in SHOP_SLOW waits until the file SHOP_GATE exists."""
import logging
import os
import sys
import time

import django
from django.core.management import execute_from_command_line

logging.basicConfig(level=logging.INFO)
django.setup()
logging.getLogger("django").addHandler(logging.StreamHandler())

from cdc_relay.django.signals import dead_lettered, failed, sent  # noqa: E402


def say(kind):
    def receiver(sender, message_id, routing_key, attempts, at, reason, last_error, possible_duplicate, task_name, task_id, headers, **_):
        print(f"{kind} {message_id} {routing_key} {attempts} {reason} {at.tzinfo} {type(possible_duplicate).__name__} {(last_error or '')[:9]}", flush=True)
        print(f"task {task_name} {task_id} {headers.get('tenant')} {kind}", flush=True)

    return receiver


def broken(message_id, **_):
    raise ZeroDivisionError(f"receiver of {message_id}")


def slow(routing_key, **_):
    if routing_key == os.environ.get("SHOP_SLOW"):
        print("slow begins", flush=True)
        while not os.path.exists(os.environ["SHOP_GATE"]):
            time.sleep(0.01)
        print("slow ends", flush=True)


sent.connect(broken)
sent.connect(slow)
receivers = [say("sent"), say("failed"), say("dead")]
for event, receiver in zip((sent, failed, dead_lettered), receivers):
    event.connect(receiver)
execute_from_command_line(["manage.py", "cdc_relay_events", *sys.argv[1:]])
