package browser

import (
	"context"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

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

// orders inserts rows ten times a second, in waves, until the test ends. If lost, some are rejected, and their keys wait.
func (s *site) orders(lost bool) {
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
			if err == nil && lost && n%50 == 0 {
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
	s.orders(true)
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
	s.do(chromedp.Navigate(s.url + "/dead-letters"))
	s.shows("parcels.lost")
	shoot("dead-letters", "light")
	behind := s.count(`SELECT coalesce(min(id), 0)::int FROM outbox WHERE attempts > 0`)
	s.exec(`INSERT INTO outbox (routing_key, ordering_key, payload) SELECT 'orders.paid', ordering_key, '{"order_id": 43}' FROM outbox WHERE id = $1`, behind)
	behind = s.count(`SELECT max(id)::int FROM outbox WHERE routing_key = 'orders.paid' AND payload::text LIKE '%43%'`)
	s.do(chromedp.Navigate(s.url+"/message"), chromedp.SendKeys("#id", quoted(behind)+"\n"), chromedp.WaitVisible(".timeline"))
	s.shows("of its ordering key")
	shoot("message", "light")
}

// becomes waits until the expression is true on the page.
func (s *site) becomes(expression string) {
	s.Helper()
	get(s, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(5*time.Minute)))
}
