package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	rabbit "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// instance is a relay in the test process, on real servers, so that the race detector and goleak watch it.
type instance struct {
	t      *testing.T
	db     *pgxpool.Pool
	config Config
	amqp   string
	queue  string
	mu     sync.Mutex
	all    []rabbit.Delivery
}

func newInstance(t *testing.T) *instance {
	t.Helper()
	i := &instance{t: t, config: DefaultConfig(), amqp: services.VHost(t), queue: services.Name(t)}
	i.config.DatabaseURL = tabletest.Database(t)
	i.config.Slot = services.Name(t)
	i.config.PollInterval = 50 * time.Millisecond
	i.config.BackoffTime = 50 * time.Millisecond
	var err error
	if i.db, err = pgxpool.New(t.Context(), i.config.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.db.Close)
	i.consume()
	return i
}

// consume records the messages that arrive until the test ends.
func (i *instance) consume() {
	conn := services.DialAMQP(i.t, i.amqp)
	channel, err := conn.Channel()
	must(i.t, err)
	_, err = channel.QueueDeclare(i.queue, true, false, false, false, nil)
	must(i.t, err)
	deliveries, err := channel.Consume(i.queue, "", true, false, false, false, nil)
	must(i.t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for d := range deliveries {
			i.mu.Lock()
			i.all = append(i.all, d)
			i.mu.Unlock()
		}
	})
	i.t.Cleanup(func() {
		_ = conn.Close()
		done.Wait()
	})
}

func (i *instance) deliveries() []rabbit.Delivery {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.all)
}

func (i *instance) arrived() int {
	ids := make(map[string]bool)
	for _, d := range i.deliveries() {
		ids[d.MessageId] = true
	}
	return len(ids)
}

func isMarked(d rabbit.Delivery) bool { return d.Headers[outbox.PossibleDuplicateHeader] == true }

// start runs a relay; stop drains it.
func (i *instance) start() (r *Relay, stop func()) {
	i.t.Helper()
	return i.startWith(i.publisher(), prometheus.NewRegistry())
}

func (i *instance) publisher() publish.Publisher {
	i.t.Helper()
	publisher, err := amqp.New(amqp.Config{
		URL: i.amqp, MaxInFlight: i.config.MaxInFlight, SendTimeout: i.config.SendTimeout, Logger: slog.New(slog.DiscardHandler),
	})
	must(i.t, err)
	return publisher
}

func (i *instance) new(publisher publish.Publisher, log slog.Handler, registry prometheus.Registerer) *Relay {
	i.t.Helper()
	r, err := New(i.config, publisher, slog.New(log), registry)
	must(i.t, err)
	return r
}

func (i *instance) startWith(publisher publish.Publisher, registry prometheus.Registerer) (r *Relay, stop func()) {
	i.t.Helper()
	r = i.new(publisher, slog.DiscardHandler, registry)
	return r, i.run(r)
}

func (i *instance) run(r *Relay) (stop func()) {
	i.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		i.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			i.t.Errorf("run: %v", err)
		}
	}
}

func (i *instance) await(what string, condition func() bool) {
	i.t.Helper()
	await.Until(i.t, what, condition)
}

func (i *instance) rowsLeft() (n int) {
	must(i.t, i.db.QueryRow(i.t.Context(), `SELECT count(*) FROM outbox`).Scan(&n))
	return n
}

// load inserts rows one after the other; every second row has a key.
func (i *instance) load(rows int) {
	i.t.Helper()
	for n := range rows {
		i.exec(`INSERT INTO outbox (routing_key, payload, ordering_key)
			VALUES ($1, to_json($2::int), CASE WHEN $2 % 2 = 0 THEN 'key' END)`, i.queue, n)
	}
}

func TestARelayThatNeverRanLeavesNoGoroutine(t *testing.T) {
	i := &instance{t: t, config: DefaultConfig(), amqp: "amqp://127.0.0.1:1"}
	i.config.DatabaseURL = "postgres://127.0.0.1:1/"
	before := goleak.IgnoreCurrent()
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	r.Close()
	r.Close()
	goleak.VerifyNone(t, before)
}

// The drain starts in another goroutine meanwhile, which matters under the race detector.
func TestMetricsAndHealthCanBeReadDuringADrain(t *testing.T) {
	i := newInstance(t)
	registry := prometheus.NewRegistry()
	r := i.new(i.publisher(), slog.DiscardHandler, registry)
	drained := make(chan error)
	go func() { drained <- r.Drain(t.Context()) }()
	for {
		select {
		case err := <-drained:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		_, err := registry.Gather()
		must(t, err)
		r.Health()
	}
}

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// It gets it at the start, and in the log of a relay that lost the privilege later.
func TestARoleWithoutConnectGetsTheMissingGrant(t *testing.T) {
	i := newInstance(t)
	u, err := url.Parse(i.config.DatabaseURL)
	must(t, err)
	database, role := strings.TrimPrefix(u.Path, "/"), services.Name(t)
	for _, statement := range []string{
		"CREATE ROLE " + role + " LOGIN PASSWORD 'secret'", "REVOKE CONNECT ON DATABASE " + database + " FROM PUBLIC",
	} {
		i.exec(statement)
	}
	t.Cleanup(func() { _, _ = i.db.Exec(context.Background(), "DROP ROLE "+role) })
	u.User = url.UserPassword(role, "secret")
	i.config.DatabaseURL = u.String()
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	var log bytes.Buffer
	newOutageLog(slog.New(slog.NewJSONHandler(&log, nil)), r.address).Report(event.StreamDown, "no stream", r.store.Check(t.Context()))
	if !strings.Contains(log.String(), "GRANT CONNECT ON DATABASE") {
		t.Errorf("no hint: %s", log.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	err = r.Run(ctx)
	want := `GRANT CONNECT ON DATABASE ` + database + ` TO ` + role + `;`
	if !problem.Is(err) || problem.Hint(err) != want {
		t.Fatalf("%v\nhint %s\nwant %s", err, problem.Hint(err), want)
	}
}

// A role with TRIGGER may use it after the start: the relay ends with the error of a start, and does not run its code for
// long.
func TestCodeOfAnotherRoleEndsARunningRelay(t *testing.T) {
	i := newInstance(t)
	role := services.Name(t)
	exec := func(statements string) {
		t.Helper()
		if _, err := i.db.Exec(context.Background(), statements); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE ROLE " + role + "; GRANT TRIGGER ON outbox TO " + role + "; GRANT CREATE ON SCHEMA public TO " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role) })
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	r.lookEvery = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	exec("INSERT INTO outbox (routing_key, payload) VALUES ('" + i.queue + "', '1')")
	i.await("the message", func() bool { return i.arrived() == 1 })
	exec("SET ROLE " + role + "; CREATE FUNCTION public.hung() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'; " +
		"CREATE TRIGGER hung BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION public.hung(); RESET ROLE")
	if err := <-ended; !errors.Is(err, migrations.ErrOwner) || !strings.Contains(err.Error(), "trigger hung of public.outbox uses") {
		t.Errorf("the relay ended with %v", err)
	}
}

// Only the server knows all its settings.
func TestAParameterThatTheServerRejectsEndsTheStart(t *testing.T) {
	for options, name := range map[string]string{
		"-c no_such_setting=1": "no_such_setting",
		"-c work_mem=much":     "work_mem",
		"-c port=1":            "port",
	} {
		i := newInstance(t)
		u, err := url.Parse(i.config.DatabaseURL)
		must(t, err)
		query := u.Query()
		query.Set("options", options)
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		i.config.DatabaseURL = u.String()
		r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
		ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
		err = r.Run(ctx)
		cancel()
		if !problem.Is(err) || !strings.Contains(err.Error(), name) || problem.Hint(err) == "" {
			t.Errorf("%s: %v", options, err)
		}
	}
}
