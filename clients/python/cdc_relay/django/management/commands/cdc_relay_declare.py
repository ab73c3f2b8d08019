"""Declares the queues of the Celery apps of this project."""
from django.core.management.base import BaseCommand

from ....celery import declare_queues, queues_of
from ...checks import _celery_apps


class Command(BaseCommand):
    help = "Declares the queues of task_queues and task_routes, for a deployment: a task waits two minutes if its queue does not exist."

    def handle(self, **options):
        for app in (app for app in _celery_apps() if hasattr(app, "cdc_relay")):
            declare_queues(app)
            self.stdout.write(f"declared: {', '.join(queue.name for queue in queues_of(app))}")
