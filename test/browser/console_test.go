// Package browser tests the console in a real Chromium against real servers. It is skipped without Chromium (Debian:
// apt-get install chromium). scripts/screenshots makes the pictures of the docs.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// site is a console with its own database, and a browser.
type site struct {
	*testing.T
	db      *pgx.Conn
	binary  string
	env     []string
	url     string
	browser context.Context
	amqp    string
	looked  map[string]bool // the names of pages that axe-core has examined
}

func newSite(t *testing.T, args ...string) *site {
	t.Helper()
	return open(t, false, args...)
}

// open starts a console, and a relay that publishes to RabbitMQ if it is live.
func open(t *testing.T, live bool, args ...string) *site {
	t.Helper()
	database := services.Database(t)
	db, err := pgx.Connect(t.Context(), database)
	must(t, err)
	t.Cleanup(func() { db.Close(context.WithoutCancel(t.Context())) })
	binary, err := built()
	must(t, err)
	s := &site{T: t, db: db, binary: binary, looked: map[string]bool{}}
	s.env = append(os.Environ(), "CDC_RELAY_DATABASE_URL="+database, "CDC_RELAY_MODE=poll", "CDC_RELAY_PUBLISHER=stdout", "CDC_RELAY_HTTP_ADDR=",
		"CDC_RELAY_AMQP_URL=", "CDC_RELAY_KEEP_PUBLISHED=168h")
	if live {
		slot := services.Name(t)
		if os.Getenv("DOCS_PICTURES") != "" {
			slot = "cdc_relay" // the server is the test's own
		}
		s.amqp = services.VHost(t)
		s.env = append(s.env, "CDC_RELAY_MODE=auto", "CDC_RELAY_PUBLISHER=amqp", "CDC_RELAY_AMQP_URL="+s.amqp, "CDC_RELAY_SLOT="+slot,
			"CDC_RELAY_PUBLICATION="+slot, "CDC_RELAY_HTTP_ADDR=127.0.0.1:0")
	}
	s.run("setup")
	if live {
		s.start("run", "--backoff-time", "10m")
	}
	s.url = s.start("console", append([]string{"--console-listen", "127.0.0.1:0"}, args...)...)
	s.startBrowser()
	return s
}

// built builds the relay once, and returns its path; the file stays.
var built = sync.OnceValues(func() (string, error) {
	binary, err := filepath.Abs("../../.dev/browser/cdc-relay")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", binary, "./cmd/cdc-relay")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
})

func (s *site) run(args ...string) string {
	s.Helper()
	c := exec.Command(s.binary, args...)
	c.Env = s.env
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		s.Fatalf("%v: %v\n%s%s", args, err, out, &stderr)
	}
	return string(out)
}

func (s *site) startBrowser() {
	s.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		s.Skip("there is no Chromium: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 800))
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(s.Context()), options...)
	browser, closeTab := chromedp.NewContext(allocator)
	s.Cleanup(func() { closeTab(); stop() })
	must(s, chromedp.Do(browser)) // it ends with the context of its first step
	var cancel context.CancelFunc
	s.browser, cancel = context.WithTimeout(browser, 10*time.Minute)
	s.Cleanup(cancel)
}

// start runs a command until the test ends, and waits until its log has its address.
func (s *site) start(command string, args ...string) (url string) {
	s.Helper()
	c := exec.Command(s.binary, append([]string{command, "--log-format", "json"}, args...)...)
	c.Env = s.env
	stderr, err := c.StderrPipe()
	must(s, err)
	must(s, c.Start())
	lines := bufio.NewScanner(stderr)
	read := make(chan struct{})
	s.Cleanup(func() { _ = c.Process.Signal(os.Interrupt); <-read; _ = c.Wait() })
	listens := false
	for !listens && lines.Scan() {
		var line struct{ URL, Event string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		url = strings.TrimSuffix(line.URL, "/")
		listens = url != "" || line.Event == "http_listening"
	}
	if !listens {
		s.Fatalf("%s has ended: %s", command, lines.Text())
	}
	go func() {
		defer close(read)
		for lines.Scan() { // keep reading, so that it is not blocked
		}
	}()
	return url
}

func (s *site) do(steps ...chromedp.Action[chromedp.Void]) {
	s.Helper()
	must(s, chromedp.Do(s.browser, steps...))
}

func get[T any](s *site, step chromedp.Action[T]) T {
	s.Helper()
	result, err := chromedp.Run(s.browser, step)
	must(s, err)
	return result
}

func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (s *site) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.db.Exec(s.Context(), sql, args...); err != nil {
		s.Fatal(err)
	}
}

func (s *site) count(sql string) (n int) {
	s.Helper()
	must(s, s.db.QueryRow(s.Context(), sql).Scan(&n))
	return n
}

func (s *site) shows(text string) {
	s.Helper()
	get(s, chromedp.Poll[bool](`document.querySelector("main").innerText.includes(`+quoted(text)+`)`, chromedp.WithPollingTimeout(2*await.Hang())))
}

func quoted(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (s *site) shoot(folder, name, scheme string) {
	s.Helper()
	s.scheme(scheme)
	picture, err := png.Decode(bytes.NewReader(get(s, chromedp.CaptureScreenshot())))
	must(s, err)
	var small bytes.Buffer
	must(s, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, picture))
	must(s, os.WriteFile(filepath.Join(folder, name+".png"), small.Bytes(), 0o644))
}

func TestEveryPageAndActionWorks(t *testing.T) {
	s := newSite(t, "--allow-changes")
	s.exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts, last_error)
		SELECT 'orders.created', '{"order_id": 42}', 'customer-' || i % 7, CASE WHEN i % 2 = 1 THEN now() + i * interval '1 minute' END, i % 2,
		CASE WHEN i % 2 = 1 THEN 'unroutable: NO_ROUTE (312): no queue took the message' END FROM generate_series(1, 120) i`)
	s.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, last_error, payload)
		SELECT -i, now(), gen_random_uuid(), 6, 1, CASE WHEN i <= 3 THEN 'invoices.issued' ELSE 'orders.paid' END, 'retries_exhausted', 'unroutable: NO_ROUTE', '1' FROM generate_series(1, 5) i`)
	s.exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		SELECT 1000 + i, now(), now(), gen_random_uuid(), 0, 1, 'orders.shipped' FROM generate_series(1, 3) i`)

	s.do(chromedp.Navigate(s.url + "/"))
	s.shows("Queue depth 120")
	s.look("overview")
	for _, page := range []struct{ link, name, text string }{
		{"Waiting", "waiting", "orders.created"},
		{"Keys", "keys", "customer-1"},
		{"Dead letters", "dead-letters", "invoices.issued"},
		{"Published", "published", "orders.shipped"},
		{"Live", "live", "orders.created"},
		{"Relays", "relays", "No relay tells that it runs"},
		{"Check", "check", "checks are ok"},
	} {
		s.do(chromedp.Click(`//nav//a[text()="`+page.link+`"]`), chromedp.WaitVisible(`//h1[text()="`+page.link+`"]`))
		s.shows(page.text)
		s.look(page.name)
	}
	if get(s, chromedp.Evaluate[bool](`document.querySelector("#well").open`)) {
		t.Error("what is ok is not folded")
	}
	for _, path := range []string{"/waiting", "/dead-letters", "/published"} {
		s.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(s.url+path), chromedp.WaitVisible("tbody tr"))
		if bottom := get(s, chromedp.Evaluate[float64](`document.querySelector("tbody tr").getBoundingClientRect().bottom`)); bottom > 800 {
			t.Errorf("%s: the first row ends at %v", path, bottom)
		}
	}
	s.do(chromedp.Navigate(s.url+"/message"), chromedp.SendKeys(`[name="q"]`, "1\n"), chromedp.WaitVisible(".timeline"))
	s.shows("It is tried again")
	s.look("message")
	s.do(chromedp.SendKeys(`[name="q"]`, "customer-1\n"), chromedp.WaitVisible(`//h1[text()="Search"]`))
	s.shows("Waiting with this ordering key")
	s.look("search")

	act := func(path, button, confirm, done string, warned ...string) {
		t.Helper()
		s.do(chromedp.Navigate(s.url + path))
		s.press("button", button)
		s.do(chromedp.WaitVisible("button.do"))
		for _, words := range append(warned, confirm) {
			s.shows(words)
		}
		s.look("change of " + strings.Trim(strings.Split(path, "?")[0], "/"))
		if get(s, chromedp.Evaluate[bool](`document.getElementById("typed") !== null`)) {
			s.do(chromedp.SendKeys("#typed", strings.Fields(confirm)[0]))
		}
		s.do(chromedp.Click("button.do"), chromedp.WaitNotPresent("button.do"))
		s.shows(done)
	}
	act("/dead-letters?routing-key=orders.paid", "Delete these…", "2 dead letters would be deleted for good", "deleted 2 dead letters")
	act("/message?id=-1", "Resend…", "1 dead letter would be resent", "resent 1 dead letter")
	act("/dead-letters", "Resend these…", "2 dead letters would be resent", "resent 2 dead letters",
		"They will fail again unless you first bind a queue to the exchange for this routing key")
	act("/waiting?state=retrying", "Resend 60…", "60 waiting retries would be due now", "made 60 messages due now")
	act("/published", "Resend these…", "3 published messages would be sent again to the relay's own exchange", "resent 3 messages",
		"Consumers without an inbox act on these messages a second time.", "Type 3 to send them again")
	if dead, late := s.count(`SELECT count(*)::int FROM outbox_dead_letter`), s.count(`SELECT count(*)::int FROM outbox WHERE available_at > now()`); dead != 0 || late != 0 {
		t.Errorf("%d dead letters, %d retries are left", dead, late)
	}
}

// Ticked rows are changed, and no others. The page keeps still until then.
func TestTickedRowsAreChanged(t *testing.T) {
	s := newSite(t, "--allow-changes")
	s.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload)
		SELECT -i, now(), gen_random_uuid(), 6, 1, 'orders.lost', 'nack', '1' FROM generate_series(1, 5) i`)
	s.do(chromedp.Navigate(s.url+"/dead-letters"), chromedp.WaitVisible(`[aria-label="Row -2"]`))
	s.shows("Delete these…")
	s.do(chromedp.Click(`[aria-label="Row -2"]`), chromedp.Click(`[aria-label="Row -4"]`))
	s.shows("Delete ticked…")
	s.exec(`UPDATE outbox_dead_letter SET attempts = 7 WHERE id = -1`)
	s.becomes(`document.getElementById("state").innerText.startsWith("Updates wait")`)
	s.press("button", "Delete ticked…")
	s.do(chromedp.WaitVisible("#typed"))
	s.shows("the 2 ticked rows")
	s.do(chromedp.SendKeys("#typed", "2\n"), chromedp.WaitNotPresent("#typed"))
	s.shows("deleted 2 dead letters")
	if left := s.count(`SELECT sum(id)::int FROM outbox_dead_letter`); left != -1-3-5 {
		t.Errorf("the ids that are left add up to %d", left)
	}
}

// Filters are links in one line: each removes itself, and a state keeps the others.
func TestFiltersAreChips(t *testing.T) {
	s := newSite(t)
	s.exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'orders.' || i % 2, '1', CASE WHEN i > 2 THEN now() + interval '1 day' END FROM generate_series(1, 9) i`)
	s.do(chromedp.Navigate(s.url + "/waiting"))
	s.becomes(`[...document.querySelectorAll(".chip")].map((c) => c.innerText).join() === "All 9,Waiting 2,Scheduled 7,Filter"`)
	s.do(chromedp.Click(".filters summary"), chromedp.SendKeys("#f-routing-key", "orders.1\n"), chromedp.WaitVisible(".chip.set"))
	s.becomes(`document.querySelector(".chip.set")?.innerText.startsWith("routing key orders.1") && document.querySelectorAll("tbody tr").length === 5`)
	s.look("chips")
	s.press(".chip", "Scheduled")
	s.do(chromedp.WaitVisible(`.chip[aria-current][href*="scheduled"]`))
	s.becomes(`document.querySelectorAll("tbody tr").length === 4 && location.search.includes("routing-key=orders.1")`)
	s.press(".chip.set", "routing key")
	s.do(chromedp.WaitNotPresent(".chip.set"))
	s.becomes(`document.querySelectorAll("tbody tr").length === 7 && location.search === "?state=scheduled"`)
}

// A reader chooses the colors and the zone of times for all pages, and stops the updates of one.
func TestTheSwitchesOfAReader(t *testing.T) {
	s := newSite(t)
	s.exec(`INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		VALUES (1, now(), '2026-01-02 23:30:00Z', gen_random_uuid(), 0, 1, 'orders.shipped')`)
	s.do(call(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kathmandu"}), chromedp.Navigate(s.url+"/published"))
	s.shows("2026-01-02 23:30:00Z")
	s.do(chromedp.Click("#zone"))
	s.shows("2026-01-03 05:15:00")
	s.do(chromedp.Navigate(s.url+"/message?id=1"), chromedp.WaitVisible(".timeline"))
	s.shows("2026-01-03 05:15:00")
	s.do(chromedp.Click("#zone"))
	s.shows("2026-01-02 23:30:00Z")
	s.scheme("light")
	s.do(chromedp.Navigate(s.url+"/waiting"), chromedp.Click("#theme"), chromedp.Click("#theme"), chromedp.Navigate(s.url+"/tail"))
	s.becomes(`document.getElementById("theme").innerText === "Dark" && getComputedStyle(document.body).backgroundColor === "rgb(15, 19, 22)"`)
	s.press("#refresh", "Updates on")
	s.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('later', '1')`)
	s.shows("Updates are off")
	s.press("#refresh", "Updates off")
	s.shows("later")
}

// press clicks on the first element with this text, in one step: an update replaces what is not under the pointer.
func (s *site) press(selector, text string) {
	s.Helper()
	s.becomes(`(() => { const found = [...document.querySelectorAll(` + quoted(selector) + `)].find((e) => e.innerText.includes(` + quoted(text) + `));
		found?.click(); return found !== undefined; })()`)
}

// The first tab stop leads to the content, and every link can be reached.
func TestTheConsoleWorksWithTheKeyboard(t *testing.T) {
	s := newSite(t)
	s.do(chromedp.Navigate(s.url+"/keys"), chromedp.WaitVisible("h1"), chromedp.KeyEvent("\t"))
	if focused := get(s, chromedp.Evaluate[string](`document.activeElement.className`)); focused != "skip" {
		t.Errorf("the first stop is %q", focused)
	}
	reached := map[string]bool{}
	for range 16 {
		s.do(chromedp.KeyEvent("\t"))
		reached[get(s, chromedp.Evaluate[string](`document.activeElement.innerText || ""`))] = true
	}
	for _, link := range []string{"Overview", "Waiting", "Keys", "Dead letters", "Published", "Live", "Relays", "Check"} {
		if !reached[link] {
			t.Errorf("%s is not reached: %v", link, reached)
		}
	}
	s.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("d"), chromedp.WaitVisible(`//h1[text()="Dead letters"]`))
	s.becomes(`!document.getElementById("keys").hidden`)
	s.do(chromedp.KeyEvent("/"), chromedp.KeyEvent("gk/"))
	s.becomes(`document.activeElement.value.endsWith("gk/") && document.querySelector("h1").innerText === "Dead letters"`)
}
