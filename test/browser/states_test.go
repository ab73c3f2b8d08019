package browser

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// tilesInOrder has the name, the level and the number of each tile.
const tilesInOrder = `[...document.querySelectorAll(".tile")].map((t) =>
	t.querySelector(".what").innerText + " " + t.className.replace("tile ", "") + " " + t.querySelector("strong").innerText).join()`

// The same relay and servers: first all is well, then a key is blocked and a message dies, then the database is gone.
func TestEachStateShowsAtAGlance(t *testing.T) {
	s := open(t, true, "--allow-changes")
	s.queues()
	s.exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.created', '1' FROM generate_series(1, 30) i`)
	s.do(chromedp.Navigate(s.url+"/"), chromedp.WaitVisible("h1"))
	s.becomes(tilesInOrder + ` === "Waiting empty 0,Retrying empty 0,Blocked empty 0,Scheduled empty 0,Dead empty 0,Published good 30"`)
	s.do(chromedp.WaitVisible(".verdict.ok"))
	s.look("healthy")

	s.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) VALUES ('invoices.issued', 'customer-7', '1')`)
	s.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'orders.paid', 'customer-7', '1' FROM generate_series(1, 4) i`)
	s.exec(`INSERT INTO outbox (routing_key, payload, max_attempts) VALUES ('parcels.lost', '1', 1), ('parcels.lost', '1', 1)`)
	s.becomes(tilesInOrder + ` === "Waiting empty 0,Retrying warning 1,Blocked warning 4,Scheduled empty 0,Dead bad 2,Published good 30"`)
	s.do(chromedp.WaitVisible(".verdict.warning"))
	s.becomes(`document.querySelector(".about a").href.includes("/runbook#") && document.querySelector(".about").innerText.includes("CdcRelay")`)
	s.press(".verdict .copy", "Copy all")
	s.becomes(`document.querySelector("#whole").textContent.includes("cdc-relay explain")`)
	s.look("degraded")
	// From the tile to what blocks the key, in three clicks.
	s.press(".tile", "Blocked")
	s.do(chromedp.WaitVisible(`//h1[text()="Waiting"]`), chromedp.WaitVisible(".state.blocked"))
	s.becomes(`document.querySelector(".verdict").offsetHeight < 60 && !document.querySelector("#why").open`)
	last := s.count(`SELECT max(id)::int FROM outbox WHERE routing_key = 'orders.paid'`)
	s.press("td a", strconv.Itoa(last))
	s.do(chromedp.WaitVisible(".timeline"))
	s.shows("Now: blocked")
	s.look("blocked message")
	s.press(".timeline a", "the message that blocks it")
	s.do(chromedp.WaitVisible(`//h2[text()="Waiting: retrying"]`))
	s.shows("Rejected")

	s.rejectConnections()
	s.do(chromedp.Navigate(s.url+"/"), chromedp.WaitVisible(".verdict.critical"), chromedp.WaitVisible(".tile"))
	s.shows("These numbers are old.")
	s.look("broken")
	s.do(chromedp.Navigate(s.url+"/waiting"), chromedp.WaitVisible(".alarm"))
	s.look("broken list")
}

func (s *site) rejectConnections() {
	s.Helper()
	config := s.db.Config().Copy()
	name := config.Database
	config.Database = "postgres"
	db, err := pgx.ConnectConfig(s.Context(), config)
	must(s, err)
	defer db.Close(context.WithoutCancel(s.Context())) //nolint:errcheck // the server notices
	_, err = db.Exec(s.Context(), `ALTER DATABASE `+pgx.Identifier{name}.Sanitize()+` ALLOW_CONNECTIONS false`)
	if err == nil {
		_, err = db.Exec(s.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
	}
	must(s, err)
}

// A live update replaces nothing under the pointer.
func TestUpdatesWaitForThePointer(t *testing.T) {
	s := newSite(t, "--allow-changes")
	s.exec(`INSERT INTO outbox (routing_key, payload, available_at, attempts) VALUES ('first', '1', now() + interval '1 hour', 1)`)
	s.do(chromedp.Navigate(s.url+"/waiting"), chromedp.WaitVisible(`button[value="retry"]`))
	move := func(selector string) {
		t.Helper()
		at := get(s, chromedp.Evaluate[[]float64](`(() => { const r = document.querySelector(`+quoted(selector)+`).getBoundingClientRect();
			return [r.left + r.width / 2, r.top + r.height / 2]; })()`))
		s.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1]))
	}
	move(".buttons button")
	get(s, chromedp.Evaluate[bool](`(window.kept = document.querySelector(".buttons button:hover")) !== null`))
	s.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('second', '1')`)
	s.becomes(`document.getElementById("state").innerText.startsWith("Updates wait")`)
	if !get(s, chromedp.Evaluate[bool](`window.kept.isConnected && !document.querySelector("main").innerText.includes("second")`)) {
		t.Error("the button under the pointer was replaced")
	}
	move("h1")
	s.shows("second")
}

// Charts, changes and copies, without a mouse.
func TestChartsAndChangesWorkWithTheKeyboard(t *testing.T) {
	s := newSite(t, "--allow-changes")
	s.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload)
		SELECT -i, now(), gen_random_uuid(), 6, 1, 'orders.lost', 'nack', '1' FROM generate_series(1, 3) i`)
	s.exec(`INSERT INTO outbox (routing_key, payload, headers, available_at) VALUES ('r', '1', '{"tenant": "<b>acme</b>"}', 'infinity')`)
	s.do(chromedp.Navigate(s.url+"/"), chromedp.WaitVisible(".chart"))
	s.tabTo(`document.activeElement.dataset.title === "Queue depth"`)
	s.do(chromedp.KeyEvent(kb.ArrowLeft))
	s.becomes(`document.activeElement.querySelector("output").innerText.includes("UTC") &&
		document.activeElement.getAttribute("aria-valuetext").includes("UTC")`)

	s.do(chromedp.Navigate(s.url+"/dead-letters"), chromedp.WaitVisible(".groups"))
	s.tabTo(`document.activeElement.innerText === "Delete these…"`)
	s.do(chromedp.KeyEvent("\r"), chromedp.WaitVisible("#typed"))
	s.tabTo(`document.activeElement.id === "typed"`)
	s.do(chromedp.KeyEvent("2\r"), chromedp.WaitVisible(`#live [role="alert"]`))
	s.shows("The number that was typed is not 3")
	s.tabTo(`document.activeElement.id === "typed"`)
	s.do(chromedp.KeyEvent("3\r"), chromedp.WaitVisible(`#live [role="status"]`))
	s.shows("deleted 3 dead letters")

	s.do(chromedp.Navigate(s.url+"/message?id=1"), chromedp.WaitVisible(".copy"))
	s.shows(`"tenant": "<b>acme</b>"`)
	s.tabTo(`document.activeElement.classList.contains("copy")`)
	s.do(chromedp.KeyEvent("\r"))
	s.becomes(`[...document.querySelectorAll(".copy")].some((b) => b.innerText === "Copied")`)
}

func (s *site) tabTo(condition string) {
	s.Helper()
	var seen []string
	for range 80 {
		s.do(chromedp.KeyEvent("\t"))
		if get(s, chromedp.Evaluate[bool](condition)) {
			return
		}
		seen = append(seen, get(s, chromedp.Evaluate[string](`(document.activeElement.innerText || document.activeElement.id || "").slice(0, 20)`)))
	}
	s.Fatalf("%s is not reached: %s", condition, strings.Join(seen, ", "))
}

// publishedKeys are bound to a queue; messages with other routing keys are rejected.
var publishedKeys = []string{"orders.created", "orders.paid", "parcels.sent"}

// queues consumes the messages until the test ends.
func (s *site) queues() {
	s.Helper()
	conn, err := amqp.Dial(s.amqp)
	must(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	must(s, err)
	for _, key := range publishedKeys {
		if _, err := channel.QueueDeclare(key, true, false, false, false, nil); err != nil {
			s.Fatal(err)
		}
		messages, err := channel.Consume(key, "", true, false, false, false, nil)
		must(s, err)
		go func() {
			for range messages { // it ends with the connection
			}
		}()
	}
}

// orders inserts rows ten times a second, in waves, until the test ends. Some are rejected, and their keys wait.
func (s *site) orders() {
	s.Helper()
	db, err := pgx.ConnectConfig(s.Context(), s.db.Config())
	must(s, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	var done sync.WaitGroup
	s.Cleanup(func() { stop(); done.Wait(); _ = db.Close(context.Background()) })
	done.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for n := 0; ; n++ {
			rows := 12 + int(8*math.Sin(float64(n)/150)+2*math.Sin(float64(n)/9))
			_, err := db.Exec(ctx, `INSERT INTO outbox (routing_key, ordering_key, payload)
				SELECT ($2::text[])[1 + i % 3], 'customer-' || $3::int % 500, '{"order_id": 42}' FROM generate_series(1, $1::int) i`, rows, publishedKeys, n)
			if err == nil && n%50 == 0 {
				_, err = db.Exec(ctx, `INSERT INTO outbox (routing_key, ordering_key, payload, max_attempts) VALUES
					('invoices.issued', 'customer-' || $1::int % 500, '{"invoice_id": 7}', NULL), ('parcels.lost', NULL, '{"parcel_id": 9}', 1)`, n)
			}
			if err != nil {
				if ctx.Err() == nil {
					s.Error(err)
				}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

// Charts, updates and history show a relay at work. DOCS_PICTURES=FOLDER makes the pictures of the docs; the charts
// take some minutes.
func TestTheConsoleShowsARunningRelay(t *testing.T) {
	s := open(t, true, "--allow-changes")
	s.queues()
	s.orders()
	pictures := os.Getenv("DOCS_PICTURES")
	points := 3
	if pictures != "" {
		points = 30
	}

	// Each chart has a line, and grows without a reload.
	s.do(chromedp.Navigate(s.url+"/"), chromedp.WaitVisible("h1"))
	get(s, chromedp.Evaluate[bool](`window.stays = true`))
	s.becomes(`document.querySelectorAll("figure path.line").length === 5 &&
		[...document.querySelectorAll("figure path.line")].every((p) => p.getAttribute("d").split("L").length > ` + quoted(points) + `)`)
	for _, text := range []string{"Published", "Commit to confirm", "p99", "messages/s over", "invoices.issued"} {
		s.shows(text)
	}
	if !get(s, chromedp.Evaluate[bool](`window.stays === true`)) {
		t.Error("the page was loaded again")
	}
	look := func(name string) {
		t.Helper()
		if pictures == "" { // else it has been examined, and the pictures are to show the numbers of one moment
			s.look(name)
		}
	}
	shoot := func(name, scheme string) {
		t.Helper()
		look(name)
		if pictures != "" {
			s.do(chromedp.EmulateViewport(1280, 960))
			s.shoot(pictures, "console-"+name, scheme)
		}
	}
	shoot("overview", "light")
	shoot("overview-dark", "dark")

	// The history updates by itself.
	s.do(chromedp.Navigate(s.url+"/published"), chromedp.WaitVisible("tbody tr"))
	first := get(s, chromedp.Evaluate[string](`document.querySelector("tbody a").innerText`))
	s.becomes(`document.querySelector("tbody a").innerText !== ` + quoted(first))
	s.shows("orders.created")
	look("published")

	s.do(chromedp.Navigate(s.url+"/keys"), chromedp.WaitVisible("tbody tr"))
	s.shows("it is tried again")
	look("keys")
	s.do(chromedp.Navigate(s.url+"/relays"), chromedp.WaitVisible(".state.good"))
	look("relays at work")
	s.do(chromedp.Navigate(s.url + "/dead-letters"))
	s.shows("parcels.lost")
	shoot("dead-letters", "light")
	behind := s.count(`SELECT coalesce(min(id), 0)::int FROM outbox WHERE attempts > 0`)
	s.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'orders.paid', ordering_key, '{"order_id": 43}' FROM outbox WHERE id = $1`, behind)
	behind = s.count(`SELECT max(id)::int FROM outbox WHERE routing_key = 'orders.paid' AND payload::text LIKE '%43%'`)
	s.do(chromedp.Navigate(s.url+"/message"), chromedp.SendKeys(`[name="q"]`, quoted(behind)+"\n"), chromedp.WaitVisible(".timeline"))
	s.shows("of its ordering key")
	shoot("message", "light")
}

func (s *site) becomes(expression string) {
	s.Helper()
	get(s, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(5*time.Minute)))
}
