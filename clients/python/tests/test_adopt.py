"""docs/adopt.md: Django's ORM writes to the table of django-celery-outbox as that package does, and a real worker runs the tasks."""
import subprocess
import uuid

import pytest
import shop
from django.db import connection, models, transaction

import cdc_relay
from conftest import HANG, RELAY, execute

pytestmark = pytest.mark.django_db(transaction=True)


class CeleryOutbox(models.Model):
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(null=True)
    retries = models.SmallIntegerField(default=0)
    retry_after = models.DateTimeField(null=True)
    task_id = models.CharField(max_length=255)
    task_name = models.CharField(max_length=255)
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    options = models.JSONField(default=dict)
    sentry_trace_id = models.CharField(max_length=512, null=True)
    sentry_baggage = models.TextField(null=True)
    structlog_context = models.TextField(null=True)
    schema_version = models.SmallIntegerField(default=1)

    class Meta:
        app_label = "adopted"
        db_table = "celery_outbox"


@pytest.fixture
def adopted(relay_environment):
    with connection.schema_editor() as editor:
        editor.create_model(CeleryOutbox)
    queue = shop.app.conf.task_default_queue
    CeleryOutbox.objects.create(task_id=uuid.uuid4(), task_name="shop.add", args=[0, 0], options={"queue": queue})
    subprocess.run([RELAY, "adopt", "celery-outbox", "--set", f"queue='{queue}'"], check=True, env=relay_environment)
    yield
    subprocess.run([RELAY, "adopt", "--undo"], check=True, env=relay_environment)
    with connection.schema_editor() as editor:
        editor.delete_model(CeleryOutbox)


def test_tasks_of_an_adopted_table_run(relay, worker, adopted):
    cdc_relay.declare_queues(shop.app)
    relay()

    def send(name, *args, **options):
        with transaction.atomic():
            row = CeleryOutbox.objects.create(task_id=str(uuid.uuid4()), task_name=name, args=args, options=options)
            assert row.pk and CeleryOutbox.objects.get(pk=row.pk).args == list(args)  # as long as the transaction is open
        return shop.app.AsyncResult(row.task_id)

    assert send("shop.add", 1, 2).get(timeout=HANG) == 3
    assert send("shop.add", 1, 2, expires=600, priority=3, eta="2026-01-01T00:00:00+00:00").get(timeout=HANG) == 3
    linked = str(uuid.uuid4())
    link = shop.add.s(10).set(task_id=linked)
    assert send("shop.add", 1, 2, link=[dict(link)]).get(timeout=HANG) == 3
    assert shop.app.AsyncResult(linked).get(timeout=HANG) == 13
    assert not CeleryOutbox.objects.exists()
    assert execute("SELECT count(*), max(last_error) FROM outbox_dead_letter") == [(0, None)]
