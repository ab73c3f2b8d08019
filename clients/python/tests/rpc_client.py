"""Waits for a result that the worker sends to this process's own queue (reply_to)."""
import cdc_relay
import shop
from django.db import transaction

cdc_relay.declare_queues(shop.app)

with transaction.atomic():
    result = shop.add.delay(20, 22)
print("result:", result.get(timeout=120))
