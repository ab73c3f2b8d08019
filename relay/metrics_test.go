package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

// scrape is one scrape of a registry: gauges and counters by name and labels, histograms by name.
type scrape struct {
	values     map[string]float64
	histograms map[string]*dto.Histogram
}

func scrapeOf(t *testing.T, registry prometheus.Gatherer) scrape {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	s := scrape{values: map[string]float64{}, histograms: map[string]*dto.Histogram{}}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			switch family.GetType() {
			case dto.MetricType_HISTOGRAM:
				s.histograms[name] = m.GetHistogram()
			case dto.MetricType_COUNTER:
				s.values[name] = m.GetCounter().GetValue()
			default:
				s.values[name] = m.GetGauge().GetValue()
			}
		}
	}
	return s
}

func (s scrape) want(t *testing.T, name string, want float64) {
	t.Helper()
	if got, ok := s.values[name]; !ok || got != want {
		t.Errorf("%s is %v (there: %v), want %v", name, got, ok, want)
	}
}

const insertTraced = `INSERT INTO outbox (routing_key, payload, headers)
	VALUES ($1, '1', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}')`

func TestMetricsMatchTheResultsOfMessages(t *testing.T) {
	i := newInstance(t)
	i.config.MaxRetries = 1
	registry := prometheus.NewRegistry()
	r, stop := i.startWith(i.publisher(), registry)
	defer stop()
	i.await("the relay streams, and has scanned the table", func() bool {
		v := r.core.View()
		return r.Health().Role == "streaming" && r.Health().Ready && !v.Backlog && !v.Unlisted
	})
	i.load(49)
	for _, insert := range []struct {
		sql  string
		args []any
	}{
		{insertTraced, []any{i.queue}},
		{`INSERT INTO outbox (routing_key, payload) SELECT 'nowhere', '1' FROM generate_series(1, 3)`, nil},
		{`INSERT INTO outbox (routing_key, payload, available_at) VALUES ($1, '1', now() + interval '1 hour')`, []any{i.queue}},
	} {
		i.exec(insert.sql, insert.args...)
	}
	i.await("only the scheduled row is left", func() bool { return i.rowsLeft() == 1 })
	i.await("all is settled", func() bool { return r.core.View().InFlight == 0 })
	i.await("all arrive", func() bool { return i.arrived() == 50 })
	s := scrapeOf(t, registry)
	checkValues(t, s)
	// A slow machine lets a message wait for longer than outbox.CertainFor.
	marked := slices.DeleteFunc(i.deliveries(), func(d rabbit.Delivery) bool { return !isMarked(d) })
	s.want(t, "cdc_relay_messages_possible_duplicates_total", float64(len(marked)))
	checkHistograms(t, s)
}

func checkValues(t *testing.T, s scrape) {
	t.Helper()
	for name, want := range map[string]float64{
		"messages_published_total": 50, "rows_deleted_total": 50,
		"messages_refused_total unroutable": 6, "messages_returned_total": 6, "messages_dead_lettered_total": 3,
		"messages_in_flight": 0, "slot_held": 1, "stream_connected": 1, "role streaming": 1, "role standby": 0,
		"breaker_state closed": 1, "breaker_state open": 0, "broker_connected": 1, "database_connected": 1,
		"publisher_blocked_seconds_total": 0,
		"queue_depth_rows":                1, "newer_version_rows": 0, "dead_letter_rows": 3, "oldest_pending_seconds": 0,
	} {
		s.want(t, "cdc_relay_"+name, want)
	}
	for _, name := range []string{"slot_lag_bytes", "slot_retained_bytes", "sample_age_seconds", "registry_rows"} {
		if v, ok := s.values["cdc_relay_"+name]; !ok || v < 0 || v > 1e10 {
			t.Errorf("%s is %v (there: %v)", name, v, ok)
		}
	}
	if age := float64(time.Now().Unix()) - s.values["cdc_relay_stream_last_activity_timestamp_seconds"]; age > 60 || age < -1 {
		t.Errorf("the stream was last active %v s ago", age)
	}
}

func checkHistograms(t *testing.T, s scrape) {
	t.Helper()
	for _, name := range []string{"commit_to_publish_seconds", "commit_to_confirm_seconds"} {
		if n := s.histograms["cdc_relay_"+name].GetSampleCount(); n != 50 {
			t.Errorf("%s has %d observations, want one for each streamed message that was confirmed", name, n)
		}
		if got := exemplars(s.histograms["cdc_relay_"+name]); len(got) != 1 || got[0] != "trace_id=4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("%s has the exemplars %v", name, got)
		}
	}
	if n := s.histograms["cdc_relay_settle_batch_rows"].GetSampleSum(); n != 56 {
		t.Errorf("%v rows were settled, want 56", n)
	}
	if s.histograms["cdc_relay_settle_duration_seconds"].GetSampleCount() == 0 {
		t.Error("no settling was measured")
	}
	if n := s.histograms["cdc_relay_sweep_batch_rows"].GetSampleSum(); n != 3 {
		t.Errorf("sweeps found %v rows, want the three that were retried", n)
	}
}

func exemplars(h *dto.Histogram) (all []string) {
	for _, bucket := range h.GetBucket() {
		for _, label := range bucket.GetExemplar().GetLabel() {
			all = append(all, label.GetName()+"="+label.GetValue())
		}
	}
	return all
}

// It also counts rows that wait in memory behind others of their key.
func TestASweepCountsAllRowsThatItFinds(t *testing.T) {
	for _, mode := range []Mode{ModeAuto, ModePoll} {
		t.Run(string(mode), func(t *testing.T) {
			i := newInstance(t)
			i.config.Mode = mode
			const rows = 40
			i.exec(`INSERT INTO outbox (routing_key, payload, ordering_key)
				SELECT $1, '1', 'key' FROM generate_series(1, $2)`, i.queue, rows)
			registry, began := prometheus.NewRegistry(), time.Now()
			r := i.new(i.publisher(), slog.DiscardHandler, registry)
			// A row that is late would be found again. The lock is proven by another clock.
			r.core.Clock = func() time.Time { return began.Add(time.Since(began) / 4) }
			stop := i.run(r)
			i.await("all leave", func() bool { return i.rowsLeft() == 0 })
			stop()
			if n := scrapeOf(t, registry).histograms["cdc_relay_sweep_batch_rows"].GetSampleSum(); n != rows {
				t.Errorf("sweeps found %v rows, want %d", n, rows)
			}
		})
	}
}

func TestAStandbyNeitherSamplesTheQueueNorEndsTheStream(t *testing.T) {
	i := newInstance(t)
	first, stopFirst := i.start()
	defer stopFirst()
	i.await("the first streams", func() bool { return first.Health().Role == "streaming" })
	stream := func() (pid int) {
		_ = i.db.QueryRow(t.Context(), `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, i.config.Names().Slot).Scan(&pid)
		return pid
	}
	before, registry := stream(), prometheus.NewRegistry()
	second, stopSecond := i.startWith(i.publisher(), registry)
	defer stopSecond()
	i.await("the second is a standby", func() bool { return second.Health().Role == "standby" })
	s := scrapeOf(t, registry)
	s.want(t, "cdc_relay_role standby", 1)
	for _, name := range []string{"queue_depth_rows", "oldest_pending_seconds", "slot_lag_bytes", "sample_age_seconds"} {
		if v, ok := s.values["cdc_relay_"+name]; ok {
			t.Errorf("%s is %v, want none", name, v)
		}
	}
	if now := stream(); before == 0 || now != before {
		t.Errorf("process %d streams, and %d did before there was a standby", now, before)
	}
}

func TestBlockedTimeCountsOnlyBlockedPhases(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	p := &publisherState{State: publish.State{Phase: publish.Ready, Since: began.Add(-time.Hour)}}
	p = p.next(publish.State{Phase: publish.Blocked, Since: began}, began)
	p = p.next(publish.State{Phase: publish.Blocked, Since: began, Detail: "another reason"}, began.Add(time.Second))
	if got := p.blockedFor(began.Add(3 * time.Second)); got != 3*time.Second {
		t.Errorf("while blocked: %s", got)
	}
	p = p.next(publish.State{Phase: publish.Ready}, began.Add(time.Minute))
	if got := p.blockedFor(began.Add(time.Hour)); got != time.Minute {
		t.Errorf("after the block: %s", got)
	}
}

func TestTwoRelaysCannotShareARegistry(t *testing.T) {
	config := DefaultConfig()
	config.DatabaseURL = "postgres://localhost/shop"
	registry := prometheus.NewRegistry()
	for n := range 2 {
		r, err := New(config, stdout.New(stdout.Config{}), slog.New(slog.DiscardHandler), registry)
		if got := fmt.Sprint(err); (n == 0) != (err == nil) {
			t.Errorf("relay %d: %s", n, got)
		}
		if r != nil {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = r.Run(ctx) // releases what New took
		}
	}
}

// promlint accepts the names, also of metrics without values at first.
func TestMetricNamesFollowPrometheusConventions(t *testing.T) {
	i := newInstance(t)
	registry := prometheus.NewRegistry()
	r, stop := i.startWith(i.publisher(), registry)
	defer stop()
	i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
	for _, outcome := range []outbox.Outcome{outbox.Rejected, outbox.Unknown} {
		r.counts.Result(outbox.Result{Outcome: outcome, Reason: outbox.ReasonNack, Message: &outbox.Message{}})
	}
	families, err := registry.Gather()
	must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func (i *instance) told(sql string) (text string) {
	i.t.Helper()
	rows, _ := i.db.Query(i.t.Context(), "SELECT coalesce(string_agg(("+sql+")::text, ' ' ORDER BY since), '') FROM outbox_relay")
	text, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	must(i.t, err)
	return text
}

func (i *instance) exec(sql string, args ...any) {
	i.t.Helper()
	if _, err := i.db.Exec(i.t.Context(), sql, args...); err != nil {
		i.t.Fatalf("%s: %v", sql, err)
	}
}

func TestRelaysTellWhatTheyDo(t *testing.T) {
	i := newInstance(t)
	i.config.Version, i.config.Settings = "v7", map[string]string{"exchange": "shop"}
	host, err := os.Hostname()
	must(t, err)
	i.exec(`INSERT INTO outbox_relay (id, seen, pid, host, version, role, settings, state) VALUES
		('was here', now() - interval '1 minute', 7, $1, '', 'killed', '{}', '{}'),
		('gone', now() - interval '25 hours', 7, 'other', '', 'gone', '{}', '{}'),
		('elsewhere', now() - interval '1 minute', 7, 'other', '', 'elsewhere', '{}', '{}')`, host)
	_, stopLeader := i.start()
	i.await("the leader tells it", func() bool { return i.told("role") == "elsewhere streaming" })
	_, stopStandby := i.start()
	i.await("the standby tells it", func() bool { return i.told("role") == "elsewhere streaming standby" })
	i.load(3)
	var report Report
	i.await("the leader tells what it has published", func() bool {
		report = Report{}
		return json.Unmarshal([]byte(i.told("CASE WHEN role = 'streaming' THEN state END")), &report) == nil && report.Published == 3 && report.Latency != nil
	})
	if !report.Ready || report.Role != "streaming" || report.Phase != "ready" || len(report.Parts) != 4 || report.Latency.Messages == 0 ||
		report.PublishedPerSecond <= 0 || report.Seconds <= 0 || report.Latency.P99Seconds <= 0 {
		t.Errorf("got %+v", report)
	}
	if got := i.told("CASE WHEN role = 'standby' THEN concat(version, settings, pid, host) END"); got != `v7{"exchange":"shop"}`+strconv.Itoa(os.Getpid())+host {
		t.Errorf("got %s", got)
	}
	stopLeader()
	i.await("the standby leads", func() bool { return i.told("role") == "elsewhere streaming" })
	stopStandby()
	if left := i.told("role"); left != "elsewhere" {
		t.Errorf("relays that have ended leave %s", left)
	}
}

func TestARelayWithoutTheTableOfRelaysPublishes(t *testing.T) {
	i := newInstance(t)
	i.exec(`DROP TABLE outbox_relay`)
	var log publishtest.Buffer
	text := func() string { return strings.Join(log.Lines(), "\n") }
	r := i.new(i.publisher(), slog.NewJSONHandler(&log, nil), prometheus.NewRegistry())
	stop := i.run(r)
	i.load(2)
	i.await("all arrive", func() bool { return i.arrived() == 2 && i.rowsLeft() == 0 })
	i.await("the log says it", func() bool { return strings.Contains(text(), `"event":"report_failing"`) })
	if text := text(); !strings.Contains(text, "public.outbox_relay does not exist") || !strings.Contains(text, `"hint":"cdc-relay setup`) {
		t.Errorf("got %s", text)
	}
	stop()
}
