"""TEST_RUNNER = "cdc_relay.django.runner.Runner": `cdc-relay setup` creates the outbox in test databases, also for pytest-django."""
import os
import shlex
import subprocess

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections, router
from django.db.models.signals import pre_migrate
from django.test.runner import DiscoverRunner

from .checks import _tables
from .models import NAME, OutboxMessage
from .tables import words_of


class Runner(DiscoverRunner):
    def setup_databases(self, **kwargs):
        self.create_outboxes()
        created = super().setup_databases(**kwargs)
        if self.keepdb and self.parallel > 1:  # Django leaves existing clones as they are
            for connection, _, is_first in created:
                for n in range(self.parallel if is_first else 0):
                    create_outbox(connection.alias, connection.creation.get_test_db_clone_settings(str(n + 1)))
        return created

    @staticmethod
    def create_outboxes():
        """From now on, each `migrate` of this process creates the outbox first. Django clones a database after that."""
        pre_migrate.connect(create_outbox, sender=apps.get_app_config("cdc_relay"))


def create_outbox(using, settings=None, **_):
    """Runs `cdc-relay setup` for the outboxes of a database, or of its clone with these settings."""
    if connections[using].vendor != "postgresql":
        return
    settings = settings or connections[using].settings_dict
    tables = {table for alias, table in _tables() if alias == using}
    if router.allow_migrate_model(using, OutboxMessage):
        tables.add(NAME)
    # Not the settings of a relay. The options and the password are those of libpq: other users may see the command.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_RELAY_")}
    environment.update({f"PG{name.upper()}": str(value) for name, value in settings.get("OPTIONS", {}).items()})
    environment["PGPASSWORD"] = settings.get("PASSWORD") or environment.get("PGPASSWORD", "")
    for table in sorted(tables):
        words = words_of(settings, table, "setup", "--mode", "poll", "--functions")
        try:
            subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise CommandError("The program cdc-relay is not in PATH. It creates the outbox in the test databases.") from error
        except subprocess.CalledProcessError as error:
            raise CommandError(f"{shlex.join(words)} failed: {error.stderr}") from error
