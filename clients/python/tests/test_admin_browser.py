"""The admin pages in a real Chromium. Skipped without it, or without python3-selenium."""
import os
import shutil

import pytest
import shop
from django.db import connection

from cdc_relay.django.models import DeadLetter, OutboxMessage

selenium = pytest.importorskip("selenium.webdriver", reason="there is no selenium: apt-get install python3-selenium chromium chromium-driver")
if not shutil.which("chromedriver"):
    pytest.skip("there is no chromedriver: apt-get install chromium chromium-driver", allow_module_level=True)

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")]
HANG = 120


@pytest.fixture
def browser():
    options = selenium.ChromeOptions()
    for argument in "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900":
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    service = selenium.chrome.service.Service(shutil.which("chromedriver"))
    with selenium.Chrome(options=options, service=service) as browser:
        yield browser


@pytest.fixture
def site(browser, live_server, django_user_model, outbox):
    django_user_model.objects.create_superuser("admin", password="s3cr3t-words")
    return Site(browser, live_server.url + "/admin/")


class Site:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        browser.get(url)
        browser.find_element(By.NAME, "username").send_keys("admin")
        browser.find_element(By.NAME, "password").send_keys("s3cr3t-words")
        self.press("input[type=submit]")

    def open(self, page):
        self.browser.get(self.url + page)
        if folder := os.environ.get("SCREENSHOTS"):
            self.browser.save_screenshot(f"{folder}/{page.strip('/').replace('/', '-')}.png")

    def text(self, css="body"):
        return self.browser.find_element(By.CSS_SELECTOR, css).text

    def press(self, css):
        """Presses a button and waits for the next page."""
        page = self.browser.find_element(By.TAG_NAME, "html")
        self.browser.find_element(By.CSS_SELECTOR, css).click()
        self.wait(lambda browser: browser.find_element(By.TAG_NAME, "html") != page)

    def follow(self, text):
        page = self.browser.find_element(By.TAG_NAME, "html")
        self.browser.find_element(By.PARTIAL_LINK_TEXT, text).click()
        self.wait(lambda browser: browser.find_element(By.TAG_NAME, "html") != page)

    def wait(self, condition):
        WebDriverWait(self.browser, HANG).until(condition)

    def act(self, action, *messages):
        for message in messages:
            self.browser.find_element(By.CSS_SELECTOR, f"input.action-select[value$='{message.pk}']").click()
        Select(self.browser.find_element(By.NAME, "action")).select_by_visible_text(action)
        self.press(".actions button[type=submit]")


def test_a_day_with_the_admin_pages(site):
    later = shop.mail.apply_async(("ann",), countdown=3600)
    shop.add.apply_async((1, 2), countdown=3600)
    failing = OutboxMessage.objects.create(routing_key="orders.created", payload={})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET attempts = 3, available_at = now() + interval '1 h', last_error = 'nack' WHERE message_id = %s", [failing.pk])
        cursor.execute(
            """INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
            VALUES (100, now(), gen_random_uuid(), 6, 1, 'orders.paid', 'retries_exhausted')"""
        )

    site.open("cdc_relay/outboxmessage/")
    assert "Waiting: 3" in site.text("#cdc-relay-summary") and "Dead: 1" in site.text("#cdc-relay-summary")
    site.follow("Failing: 1")
    assert "1 waiting message" in site.text(".paginator") and "orders.created" in site.text("#result_list")
    site.act("Retry now", failing)
    assert "Due now: 1" in site.text(".messagelist")

    site.open("cdc_relay/outboxmessage/")
    site.follow("shop.mail")
    assert "1 waiting message" in site.text(".paginator")
    site.act("Cancel", OutboxMessage.objects.get(pk=later.id))
    assert later.id in site.text("#content") and OutboxMessage.objects.count() == 3  # it asks first
    site.press("input[name=confirmed]")
    assert "Cancelled: 1" in site.text(".messagelist")
    assert not OutboxMessage.objects.filter(pk=later.id).exists()

    site.open("cdc_relay/outboxmessage/")
    site.follow("Dead: 1")
    site.act("Send back to the outbox", DeadLetter.objects.get())
    assert "Sent back: 1" in site.text(".messagelist") and "Dead: 0" in site.text("#cdc-relay-summary")
    assert OutboxMessage.objects.filter(routing_key="orders.paid").exists()
    OutboxMessage.objects.all().delete()
