"""Django settings of the tests. SHOP_DATABASE is the database of a worker started by a test."""
import os
from urllib.parse import unquote, urlsplit

url = urlsplit(os.environ["CDC_RELAY_DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("SHOP_DATABASE") or url.path[1:],
        "USER": unquote(url.username),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname,
        "PORT": url.port,
    }
}
CDC_RELAY_TABLE = os.environ.get("SHOP_TABLE", "outbox")
CDC_RELAY_BROKER_URL = os.environ.get("SHOP_EVENTS_BROKER") or os.environ["CDC_RELAY_AMQP_URL"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "cdc_relay.django.apps.CDCRelayConfig",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TEST_RUNNER = "cdc_relay.django.runner.Runner"
ROOT_URLCONF = "urls"
SECRET_KEY = "of the tests"
USE_TZ = True
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
