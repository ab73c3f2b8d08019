"""The examples of README.md, section Django."""
import re

import pytest
from conftest import here
from django.core import mail

from cdc_relay.django import checks, signals
from cdc_relay.django.models import OutboxMessage

README = (here.parent / "README.md").read_text()
DJANGO = README[README.index("\n## Django\n") : README.index("\n## Tests\n")]


@pytest.mark.django_db
def test_the_examples_run(settings, mailoutbox):
    settings.ADMINS = [("ann", "ann@example.com")]
    names = {}
    for code in re.findall(r"```python\n(.*?)```", DJANGO, re.DOTALL):
        exec(code, names)
    assert [message.payload for message in OutboxMessage.objects.order_by("created_at")] == [{"order_id": 42}, {"order_id": 43}]
    signals.dead_lettered.send_robust(sender=OutboxMessage, message_id="5a0c", routing_key="orders", task_name=None, reason="expired", last_error="late", attempts=1)
    signals.dead_lettered.disconnect(names["tell"])
    assert [message.body for message in mail.outbox] == ["5a0c: late"]


def test_the_settings_and_checks_are_those_of_the_code():
    assert set(re.findall(r"^\| `(CDC_RELAY_\w+)`", DJANGO, re.MULTILINE)) == set(checks.SETTINGS)
    source = "".join((here.parent / "cdc_relay" / name).read_text() for name in ("celery.py", "django/checks.py"))
    assert set(re.findall(r"[EWI]00\d", DJANGO)) == set(re.findall(r"cdc_relay\.([EWI]00\d)", source))


def test_the_options_of_the_relay_are_those_of_the_command():
    from cdc_relay.django.management.commands.cdc_relay_events import Command

    exchange, events = re.search(r"--events-exchange (\S+) --events (\S+)", DJANGO).groups()
    assert Command().create_parser("manage.py", "cdc_relay_events").parse_args([]).exchange == exchange
    assert set(events.split(",")) == set(signals.BY_EVENT)
