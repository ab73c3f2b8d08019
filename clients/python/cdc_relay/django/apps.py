from django.apps import AppConfig


class CDCRelayConfig(AppConfig):
    name = "cdc_relay.django"
    label = "cdc_relay"
    verbose_name = "Outbox"

    def ready(self):
        from . import checks  # noqa: F401 registers them
