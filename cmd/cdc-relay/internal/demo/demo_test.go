package demo

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

// Whoever follows the hints gets a running demo.
func TestTheDemoNamesThePermissionsThatItLacks(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	if broker.ManagementURL() == "" {
		t.Skip("needs the management API of RabbitMQ")
	}
	address, err := url.Parse(services.VHost(t))
	if err != nil {
		t.Fatal(err)
	}
	vhost, user := strings.TrimPrefix(address.Path, "/"), services.Name(t)
	if err := broker.AddUser(t.Context(), user, "s3cr3t"); err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(user, "s3cr3t")
	open := func(u url.URL) error {
		queue, err := openQueue(amqpdial.Address{Text: secret.Text{Value: u.String()}})
		if err == nil {
			queue.close()
		}
		return err
	}
	says := func(what string, err error, text, hint string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		got := problem.Hint(err)
		if !strings.Contains(err.Error(), text) || !strings.Contains(got, hint) ||
			strings.Contains(err.Error()+got, "s3cr3t") {
			t.Errorf("%s: %v; hint: %s", what, err, got)
		}
	}
	const wanted = ` '^amq\.gen-' '.*' '^amq\.gen-'`
	permit := "rabbitmqctl set_permissions -p " + problem.ShellWord(vhost) + " " + user + wanted
	says("no permission in the virtual host", open(*address), "refused for user", permit)
	for what, p := range map[string]services.Permissions{
		"those of a relay":  {Write: ".*"},
		"read-only":         {Read: ".*"},
		"without reading":   {Configure: ".*", Write: ".*"},
		"without configure": {Write: ".*", Read: ".*"},
		"for other names":   {Configure: "^demo", Write: "^demo", Read: "^demo"},
	} {
		if err := broker.Permit(t.Context(), vhost, user, p); err != nil {
			t.Fatal(err)
		}
		says(what, open(*address), "may not create and read the queue of the demo", permit)
	}
	words := regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(permissions, -1)
	hinted := services.Permissions{Configure: words[0][1], Write: words[1][1], Read: words[2][1]}
	if err := broker.Permit(t.Context(), vhost, user, hinted); err != nil {
		t.Fatal(err)
	}
	if err := open(*address); err != nil {
		t.Errorf("after the hint: %v", err)
	}
	wrong := *address
	wrong.User = url.UserPassword(user, "s3cr3t-too")
	says("a wrong password", open(wrong), user, "change_password")
	wrong = *address
	wrong.Path = "/never-there"
	says("a missing virtual host", open(wrong), "not found",
		"add_vhost never-there && rabbitmqctl set_permissions -p never-there "+user+wanted)
	wrong = *address
	wrong.Host = "127.0.0.1:1"
	says("nobody there", open(wrong), "refused", "#")
}

func TestTheDemoNamesThePrivilegesThatItLacks(t *testing.T) {
	tables := tabletest.New(t)
	db := tables.Conn
	role := services.Name(t)
	tables.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), "RESET ROLE; DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	tables.Exec(`GRANT INSERT ON outbox TO ` + role + `; SET ROLE ` + role)
	orders := inserter{conn: db, table: tabletest.Name(), queue: "q"}
	_, err := orders.insertOne(t.Context())
	hint := problem.Hint(orders.explained(err))
	if !strings.Contains(hint, `GRANT SELECT (id, message_id) ON "public"."outbox" TO `) {
		t.Fatalf("%v; hint: %s", err, hint)
	}
	missing, _, _ := strings.Cut(hint, "  -- ")
	tables.Exec(`RESET ROLE; ` + strings.ReplaceAll(missing, outbox.QuoteIdentifier(db.Config().User), role) + ` SET ROLE ` + role)
	order, err := orders.insertOne(t.Context())
	if err != nil {
		t.Fatalf("after the hint: %v", err)
	}
	sent := map[outbox.UUID]sentOrder{order.messageID: order}
	if why := orders.rejection(t.Context(), sent); why != "" {
		t.Errorf("rejected: %q", why)
	}
	tables.Exec(`RESET ROLE; UPDATE outbox SET last_error = 'access_refused: no'`)
	if why := orders.rejection(t.Context(), sent); why != "access_refused: no" {
		t.Errorf("rejected: %q", why)
	}
}

func TestPercentilesCoverTheNewestMeasurements(t *testing.T) {
	var l latencies
	if got := l.percentile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
	one := new(latencies)
	one.add(time.Second)
	if one.percentile(0) != time.Second || one.percentile(1) != time.Second {
		t.Errorf("of one: %+v", one)
	}
	var all []time.Duration
	for range latencyWindow + 2500 {
		d := time.Duration(rand.IntN(1000))
		all = append(all, d)
		l.add(d)
	}
	newest := slices.Sorted(slices.Values(all[len(all)-latencyWindow:]))
	for _, test := range []struct {
		share float64
		at    int
	}{{0, 0}, {0.5, latencyWindow/2 - 1}, {0.99, latencyWindow*99/100 - 1}, {1, latencyWindow - 1}} {
		if got, want := l.percentile(test.share), newest[test.at]; got != want {
			t.Errorf("%.2f: got %d, want %d", test.share, got, want)
		}
	}
	if l.worst != slices.Max(all) {
		t.Errorf("worst: %d", l.worst)
	}
}

func TestWithoutATerminalTheScreenIsPlainLines(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(terminal.New(nil, &out, &out, false))
	numbers := summary{counts{sent: 2, arrived: 1, repeated: 1}, time.Millisecond, 2 * time.Millisecond, time.Second}
	s.begin(tabletest.Name(), "db\x1b", "q")
	s.live(numbers)
	s.arrival(sentOrder{id: 7, text: "tea"}, 1500*time.Microsecond, numbers)
	s.note("a note")
	s.end(numbers)
	const want = `Each order is inserted, committed, published and received here.
from public.outbox at db\x1b
through queue q; Ctrl-C ends it

     #7  tea                                              1.5 ms  (p50 1.0 ms, p99 2.0 ms)
a note

2 sent, 1 arrived, 1 of them twice; commit to arrival: p50 1.0 ms, p99 2.0 ms, slowest 1000.0 ms
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
