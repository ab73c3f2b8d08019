package demo

import (
	"bytes"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/secret"
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
	services.Must(t, err)
	vhost, user := strings.TrimPrefix(address.Path, "/"), services.Name(t)
	services.Must(t, broker.AddUser(t.Context(), user, "s3cr3t"))
	address.User = url.UserPassword(user, "s3cr3t")
	open := func(u url.URL) error {
		conn, node, err := connect(amqpdial.Address{Text: secret.Text{Value: u.String()}})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, _, err = openQueue(conn, node)
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
		services.Must(t, broker.Permit(t.Context(), vhost, user, p))
		says(what, open(*address), "may not create and read the queue of the demo", permit)
	}
	words := regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(permissions, -1)
	hinted := services.Permissions{Configure: words[0][1], Write: words[1][1], Read: words[2][1]}
	services.Must(t, broker.Permit(t.Context(), vhost, user, hinted))
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

func TestRowsThatDidNotArriveAreDeletedAndExplainTheError(t *testing.T) {
	tables := tabletest.New(t)
	var out bytes.Buffer
	d := &demo{
		Config: Config{Conn: tables.Conn, Table: tabletest.Name(), Out: &out},
		queue:  "q\x1b", pending: make(map[string]order),
	}
	tables.Exec(`INSERT INTO outbox (routing_key, payload) VALUES ('q', '1')`)
	services.Must(t, d.insert(t.Context()))
	tables.Exec(`UPDATE outbox SET last_error = 'access_refused: no' WHERE routing_key <> 'q'`)
	err := d.tidy(t.Context(), errNothingArrives)
	const want = "1 orders were committed to public.outbox and nothing arrived for 10s: RabbitMQ rejects them: access_refused: no"
	if err == nil || err.Error() != want || out.Len() > 0 {
		t.Errorf("%v\n%s", err, &out)
	}
	err = d.tidy(t.Context(), errNothingArrives)
	if hint := problem.Hint(err); err == nil || strings.Contains(err.Error(), "rejects") || !strings.HasPrefix(hint, "cdc-relay run ") {
		t.Errorf("without a rejection: %v; hint: %s", err, hint)
	}
	var left string
	if err := tables.Conn.QueryRow(t.Context(), `SELECT string_agg(routing_key, ',') FROM outbox`).Scan(&left); err != nil || left != "q" {
		t.Errorf("rows of %q are left; %v", left, err)
	}
}

func TestTheDemoPrintsEachArrivalAndASummary(t *testing.T) {
	var out bytes.Buffer
	d := &demo{Config: Config{Out: &out}, pending: make(map[string]order), sent: latencyWindow + 200}
	start := time.Now()
	for i := range latencyWindow + 100 { // the first 100 are slow, and too old for the percentiles
		took := time.Duration(i) * time.Microsecond
		if i < 100 {
			took = time.Second
		}
		d.pending["m"] = order{id: int64(i), text: "tea", committing: start}
		d.take(arrival{"m", start.Add(took)})
		d.take(arrival{"m", start.Add(2 * time.Second)}) // a duplicate
	}
	line, _, _ := strings.Cut(out.String(), "\n")
	if want := "     #0  tea                                 arrived after 1000.0 ms"; line != want {
		t.Errorf("got  %q\nwant %q", line, want)
	}
	const want = "10200 sent, 10100 arrived; commit to arrival: p50 5.1 ms, p99 10.0 ms, slowest 1000.0 ms"
	if got := d.summary(); got != want {
		t.Errorf("got %s", got)
	}
}
