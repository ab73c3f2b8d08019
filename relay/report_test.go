package relay

import (
	"encoding/json"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

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
