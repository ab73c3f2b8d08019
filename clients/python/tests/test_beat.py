"""A real beat sends due tasks to the outbox."""
import sys
import time

import pytest
from django.db import connection

pytestmark = pytest.mark.django_db(transaction=True)
HANG = 120


def test_beat_needs_no_broker_and_survives_a_broken_connection(start, tmp_path, drain_outbox, outbox):
    beat = start(
        sys.executable, "-m", "celery", "-A", "shop", "beat", "-l", "INFO", "--schedule", str(tmp_path / "schedule"),
        SHOP_BROKER="amqp://127.0.0.1:1//", PGAPPNAME="beat",
    )  # fmt: skip

    def until_more_than(count):
        deadline = time.monotonic() + HANG
        while len(outbox) <= count:
            assert time.monotonic() < deadline, "beat sends nothing"

    until_more_than(0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = 'beat'")
        assert cursor.fetchone() == (1,)
    until_more_than(len(outbox))
    beat.stop()
    assert "OutsideTransactionWarning" not in beat.said()
    assert {message.task for message in drain_outbox(run_tasks=False)} == {"shop.add"}
