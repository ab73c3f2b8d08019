package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func defaults() Options {
	return Options{Table: outbox.Table{Schema: "public", Name: "outbox"}, Slot: "cdc_relay", Publication: "cdc_relay"}
}

func well() databaseFacts {
	f := databaseFacts{address: "10.0.0.1:5432", encryption: encryption{tls: &tls.ConnectionState{Version: tls.VersionTLS13}}}
	f.server.value = serverFacts{
		VersionNumber: 180004, Version: "18.4", Database: "shop", MaxWAL: 1024,
	}
	f.role.value = roleFacts{Name: "cdc_relay", User: "cdc_relay", Streams: true, CreatesSlots: true, SeesOthers: true}
	f.tables.value = tablesFacts{SchemaExists: true, SchemaUsage: true, Sequence: outbox.Table{Schema: "public", Name: "outbox_id_seq"}, SequenceGranted: true, Tables: map[string]tableFacts{
		"outbox_relay": {Privileges: []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
	}}
	for _, need := range schema.Needs(defaults().Table) {
		f.tables.value.Tables[need.Table.Name] = tableFacts{
			Kind: "r", Persistence: "p", Owner: "shop", Columns: columnsOf(need.Table), Indexes: indexesOf(need.Table), Privileges: need.Privileges,
		}
	}
	f.version.value = migrations.State{Current: 1, Latest: 1}
	f.publication.value = publicationFacts{Exists: true, Insert: true, ViaRoot: true, HasTable: true}
	f.slots.value.Slots = []slot.Slot{{Name: "cdc_relay", Plugin: "pgoutput", Type: "logical", Here: true, Confirmed: 1, Process: process("cdc-relay stream public.outbox")}}
	f.sample.value = sample{whole: true}
	return f
}

func process(application string) slot.Process { return slot.Process{PID: 7, Application: &application} }

func columnsOf(table outbox.Table) (columns []columnFacts) {
	wanted, err := migrations.Columns(defaults().Table, table)
	if err != nil {
		panic(err)
	}
	for _, want := range wanted {
		columns = append(columns, columnFacts{Name: want.Name, Type: want.Type, NotNull: want.NotNull, Filled: want.Default != ""})
	}
	return columns
}

func indexesOf(table outbox.Table) (indexes []indexFacts) {
	wanted, err := migrations.Indexes(defaults().Table, table)
	if err != nil {
		panic(err)
	}
	for _, want := range wanted {
		indexes = append(indexes, indexFacts{Columns: want.Columns, Unique: want.Primary, Valid: true})
	}
	return indexes
}

func notOK(findings []Finding) []string {
	var names []string
	for _, f := range findings {
		if f.Level != OK {
			names = append(names, fmt.Sprintf("%s %s/%s", f.Level, f.Area, f.Name))
		}
	}
	return names
}

// judgement is a case that is difficult or slow to cause on a real server.
type judgement struct {
	change func(o *Options, f *databaseFacts)
	want   string // the only findings that are not ok
	words  []string
}

func TestDatabaseFactsGiveTheExpectedFindings(t *testing.T) {
	const giga = 1 << 30
	for name, test := range map[string]judgement{
		"no server": {func(_ *Options, f *databaseFacts) {
			f.unreachable = problem.New("look whether it runs", "nobody there")
		}, "critical postgres/reachable", []string{"nobody there", "look whether it runs"}},
		"an old version": {func(_ *Options, f *databaseFacts) { f.server.value.VersionNumber = 140023 }, "critical postgres/version", []string{"15"}},
		"a new version":  {func(_ *Options, f *databaseFacts) { f.server.value.VersionNumber = 200000 }, "warning postgres/version", []string{"newer"}},
		"slots of others": {func(_ *Options, f *databaseFacts) {
			for i := range 7 {
				f.slots.value.Slots = append(f.slots.value.Slots, slot.Slot{Name: fmt.Sprintf("standby%d", i), Type: "physical", RetainedBytes: 479 << 20})
			}
			f.slots.value.Slots = append(f.slots.value.Slots, slot.Slot{Name: "busy", RetainedBytes: 1 << 30, Process: process("x")},
				slot.Slot{Name: "small", RetainedBytes: 99 << 20})
		}, strings.Repeat("warning slot/other_slot, ", 5) + "warning slot/other_slot", []string{
			"slot standby0, a physical slot, retains 479 MB of WAL, and nobody uses it", "-- ask its owner, who loses", "drop_replication_slot('standby4')", "2 more slots retain",
		}},
		"pg_hba.conf":              {func(_ *Options, f *databaseFacts) { f.replication = errors.New("no pg_hba.conf entry") }, "critical postgres/replication", []string{"pg_hba.conf has to let the role in"}},
		"a pooler that replicates": {func(_ *Options, f *databaseFacts) { f.pooler = "seen" }, "warning postgres/pooler", []string{"shares server processes"}},
		"a pooler of Neon": {func(_ *Options, f *databaseFacts) {
			f.pooler = "seen"
			f.server.value.Roles = []string{"neon_superuser"}
		}, "warning postgres/pooler", []string{"without -pooler"}},
		"a pooler of Supabase": {func(_ *Options, f *databaseFacts) {
			f.pooler = "seen"
			f.server.value.Roles = []string{"supabase_admin"}
		}, "warning postgres/pooler", []string{"db.PROJECT.supabase.co:5432"}},
		"a question without an answer": {func(_ *Options, f *databaseFacts) {
			f.slots.err = &advice{errors.New("it took long"), remark("look again")}
		}, "warning slot/slot", []string{"it took long", "look again"}},
		"WAL without a limit": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].Process = slot.Process{}
			f.server.value.MaxWAL = 20480
			f.slots.value.Slots[0].RetainedBytes = 20 * giga
			f.slots.value.Slots[0].WALStatus = "extended"
			days := 3.0 * 24 * 3600
			f.slots.value.Slots[0].InactiveSeconds = &days
		}, "warning slot/active, critical slot/lag", []string{"= '40GB'", "20.0 GB of WAL retained (extended)", "for 3 days"}},
		"a slot in the making": {func(_ *Options, f *databaseFacts) { f.slots.value.Slots[0].Confirmed = 0 }, "warning slot/slot", []string{"being created by Postgres process 7"}},
		"a slot owned by another program": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].Process = process("pg_recvlogical")
		}, "critical slot/active", []string{"Postgres process 7 (pg_recvlogical)", "no relay of table public.outbox", "SELECT pg_catalog.pg_terminate_backend(7);"}},
		"a slot owned by another outbox": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].Process = process("cdc-relay stream billing.outbox")
		}, "critical slot/active", []string{"cdc-relay stream billing.outbox", "cdc-relay setup --slot NAME --publication NAME"}},
		"slots of another number of shards": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots = append(f.slots.value.Slots, slot.Slot{Name: "cdc_relay_0_of_4", Plugin: "pgoutput", Type: "logical", Here: true, Confirmed: 1})
		}, "warning slot/shards", []string{"cdc_relay_0_of_4", "cdc-relay teardown --shards 4"}},
		"a slot ahead": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].LagBytes, f.slots.value.Slots[0].Process = -5*giga, slot.Process{}
		}, "critical slot/slot", []string{"5.0 GB ahead", "pg_drop_replication_slot"}},
		"a slot of a demoted primary": {func(_ *Options, f *databaseFacts) {
			f.server.value.InRecovery, f.slots.value.Slots[0].Process, f.slots.value.Slots[0].RetainedBytes = true, slot.Process{}, 3*giga
		}, "critical postgres/primary, warning slot/slot", []string{"demoted primary", "retains 3.0 GB", "pg_drop_replication_slot"}},
		"a relay that cannot stream": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].Process = slot.Process{}
			f.relays = Relays{NotStreaming: "relay 7 on host web-1", Detail: "the publication is gone", Fix: "recreate it"}
		}, "warning slot/active", []string{"nobody owns the slot: relay 7 on host web-1 runs and cannot stream", "the publication is gone", "recreate it"}},
		"a relay that is not seen": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots[0].Process = slot.Process{}
			f.relays = Relays{Missed: []string{"relay 7 on host web-1 was last seen 20s ago"}}
		}, "warning slot/active", []string{"no relay streams, and the slot retains WAL; relay 7 on host web-1 was last seen 20s ago", "see its log"}},
		"a stream that lags": {func(_ *Options, f *databaseFacts) { f.slots.value.Slots[0].LagBytes = 2 * giga }, "warning slot/lag", []string{"2.0 GB not confirmed"}},
		"old transactions": {func(_ *Options, f *databaseFacts) {
			f.transactions.value.Sessions = []transaction{{PID: 42, User: "report", State: "active", Age: 7200, Here: true}, {PID: 43, Age: 9000}}
		}, "warning cleanup/transactions", []string{"Postgres process 42 (report, active)", "2h0m", "pg_terminate_backend(42)"}},
		"an old transaction that is hidden": {func(_ *Options, f *databaseFacts) {
			f.role.value.SeesOthers = false
			f.transactions.value.Writers = []writer{{Blocker: problem.Blocker{PID: 42, Details: "report"}, XIDAge: 200_000}}
		}, "warning cleanup/transactions", []string{"Postgres process 42 (report)", "for 200000 transactions", "GRANT pg_read_all_stats"}},
		"a standby's query by a slot": {func(_ *Options, f *databaseFacts) {
			f.slots.value.Slots = append(f.slots.value.Slots, slot.Slot{Name: "standby", Process: process("standby"), Xmin: "1", XminAge: 6_000_000})
		}, "warning cleanup/standby_horizon", []string{"6000000 transactions"}},
		"a standby's query": {func(_ *Options, f *databaseFacts) {
			f.transactions.value.Feedback = []transaction{{Program: "walreceiver", XIDAge: 6_000_000}}
		}, "warning cleanup/standby_horizon", []string{"walreceiver"}},
		"an update is waited for": {func(_ *Options, f *databaseFacts) {
			f.version.value = migrations.State{Current: 1, Latest: 2, Pending: []migrations.Migration{{Version: 2}}}
		}, "critical tables/migrations", []string{"cdc-relay setup --tables-only"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, f := defaults(), well()
			test.change(&o, &f)
			findings := judgeDatabase(o, f)
			if got := strings.Join(notOK(findings), ", "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			text := fmt.Sprint(findings)
			for _, words := range test.words {
				if !strings.Contains(text, words) {
					t.Errorf("not said: %s\n%s", words, text)
				}
			}
		})
	}
}

// The checks of settings get the values in place of those of the server.
func TestSettingsGiveTheExpectedFindings(t *testing.T) {
	const limit = "max_slot_wal_keep_size"
	conn := tabletest.Connect(t, services.SharedPostgres(t).Database(t))
	for name, test := range map[string]struct {
		set   map[string]string
		poll  bool
		slot  slot.Slot
		other string
		want  string
		words []string
	}{
		"replica on 18":       {set: map[string]string{"wal_level": "replica"}, want: "critical wal_level", words: []string{"streaming needs logical", "'logical'"}},
		"replica, and polled": {set: map[string]string{"wal_level": "replica"}, poll: true, want: "ok wal_level", words: []string{"needs no streaming"}},
		"replica on 19": {
			set:  map[string]string{"wal_level": "replica", "effective_wal_level": "logical", "server_version_num": "190000"},
			want: "ok wal_level", words: []string{"replica, and logical now"},
		},
		"minimal on 19":       {set: map[string]string{"wal_level": "minimal", "server_version_num": "190000"}, want: "critical wal_level", words: []string{"wal_level is minimal"}},
		"all walsenders used": {set: map[string]string{"max_wal_senders": "0"}, slot: well().slots.value.Slots[0], want: "warning max_wal_senders", words: []string{"'10'"}},
		"no walsender free":   {set: map[string]string{"max_wal_senders": "0"}, want: "critical max_wal_senders", words: []string{" of 0 ", "'10'"}},
		"impatient senders":   {set: map[string]string{"wal_sender_timeout": "1000"}, want: "warning wal_sender_timeout", words: []string{"1000ms", "'60s'"}},
		"no limit":            {set: map[string]string{limit: "-1"}, want: "warning " + limit, words: []string{"= '10GB'"}},
		"no limit, and others": {
			set: map[string]string{limit: "-1"}, other: "debezium", want: "warning " + limit,
			words: []string{"debezium", "check the other slots first"},
		},
		"a limit":                {set: map[string]string{limit: "10240"}, want: "ok " + limit, words: []string{"10240 MB. For this relay a limit is safe"}},
		"counting switched off":  {set: map[string]string{"track_counts": "off"}, want: "warning autovacuum", words: []string{"SET track_counts = 'on'"}},
		"a COMMIT that hangs":    {set: map[string]string{"synchronous_standby_names": "ANY 1 (a, b)"}, want: "critical commits", words: []string{"COMMIT of 2 sessions waits", "ANY 1 (a, b)"}},
		"slots that time out":    {set: map[string]string{"idle_replication_slot_timeout": "3600"}, want: "ok idle_replication_slot_timeout", words: []string{"01:00:00: relays that"}},
		"slots that never do so": {set: map[string]string{"idle_replication_slot_timeout": "0"}, want: "ok idle_replication_slot_timeout", words: []string{"off: the slot"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, f := defaults(), well()
			o.Poll, f.slots.value.Slots = test.poll, []slot.Slot{test.slot}
			if test.other != "" {
				f.slots.value.Slots = append(f.slots.value.Slots, slot.Slot{Name: test.other})
			}
			f.tables.value = tablesFacts{}
			j := newDatabaseJudge(o, f)
			var found []Finding
			for area := range shadowed(t, conn, j, test.set) {
				j.judgeRows(chart{area, "", &found})
			}
			text := ""
			for _, one := range found {
				if level, name, _ := strings.Cut(test.want, " "); one.Name == name && one.Level == Level(level) {
					text += fmt.Sprint(one)
				}
			}
			for _, words := range append(test.words, "") {
				if text == "" || !strings.Contains(text, words) {
					t.Errorf("not said: %s\n%s\n%v", words, text, found)
				}
			}
		})
	}
}

// shadowed makes the checks with these settings, and with two sessions whose COMMIT waits. It returns their areas.
func shadowed(t *testing.T, conn *pgx.Conn, j *databaseJudge, set map[string]string) map[Area]bool {
	t.Helper()
	for _, statement := range []string{
		"BEGIN",
		"CREATE TEMP TABLE pg_settings AS SELECT * FROM pg_catalog.pg_settings",
		"CREATE TEMP VIEW pg_stat_activity AS SELECT 'SyncRep' AS wait_event, current_database() AS datname FROM generate_series(1, 2)",
		"SET LOCAL search_path = pg_temp, pg_catalog",
	} {
		_, err := conn.Exec(t.Context(), statement)
		services.Must(t, err)
	}
	for name, value := range set {
		_, err := conn.Exec(t.Context(), `WITH known AS (UPDATE pg_settings SET setting = $2 WHERE name = $1 RETURNING name)
			INSERT INTO pg_settings (name, setting, unit, vartype) SELECT $1, $2, 's', 'string' WHERE NOT EXISTS (SELECT FROM known)`, name, value)
		services.Must(t, err)
	}
	defer func() {
		_, err := conn.Exec(context.Background(), "ROLLBACK")
		services.Must(t, err)
	}()
	areas := map[Area]bool{}
	common, all, args := j.checks()
	for _, one := range all {
		rows, _ := conn.Query(t.Context(), common+one.Says, args)
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		services.Must(t, err)
		j.f.rows, areas[one.Area] = append(j.f.rows, found...), true
	}
	return areas
}

// A check that fails is reported, and the others are made.
func TestAnErrorInOneCheckLosesNoOther(t *testing.T) {
	conn := tabletest.Connect(t, services.SharedPostgres(t).Database(t))
	f := well()
	f.tables.value.Sequence = outbox.Table{Schema: "pg_catalog", Name: "pg_class"} // it exists, and is no sequence
	j := newDatabaseJudge(Options{Table: outbox.Table{Schema: "public", Name: "no"}}, f)
	j.there, j.f.rows = true, nil
	j.f.rows = j.askChecks(t.Context(), &session{conn: conn})
	var found []Finding
	j.judgeRows(chart{Tables, "", &found})
	j.judgeRows(chart{Postgres, "", &found})
	if text := fmt.Sprint(found); !strings.Contains(text, "could not be checked: ") || !strings.Contains(text, "wal_level") {
		t.Errorf("got %s", text)
	}
}

func TestEveryManagedServiceHasItsCommands(t *testing.T) {
	for role, says := range map[string][]string{
		"rds_superuser":     {"Amazon RDS", "rds.logical_replication", "GRANT rds_replication TO"},
		"cloudsqlsuperuser": {"Cloud SQL", "cloudsql.logical_decoding", "WITH REPLICATION"},
		"alloydbsuperuser":  {"AlloyDB", "alloydb.logical_decoding", "WITH REPLICATION"},
		"azure_pg_admin":    {"Azure", "az postgres flexible-server parameter set", "WITH REPLICATION"},
		"supabase_admin":    {"Supabase", "wal_level=logical", "REPLICATION"},
		"neon_superuser":    {"Neon", "enable_logical_replication", "REPLICATION"},
	} {
		m := service([]string{"pg_monitor", role})
		text := m.name
		for _, steps := range []steps{m.logicalWAL(), m.replication("The role"), m.setting("wal_sender_timeout", "60s", true)} {
			for _, line := range steps.lines() {
				if text += "\n" + line; !pasteable(strings.TrimSpace(line)) {
					t.Errorf("%s: this cannot be pasted: %s", role, line)
				}
			}
		}
		for _, words := range append(says, `"The role"`, "wal_sender_timeout") {
			if !strings.Contains(text, words) || strings.Contains(text, "%!") || strings.Contains(text, "%s") {
				t.Errorf("%s: not said: %s\n%s", role, words, text)
			}
		}
	}
	if n := len(managedServices()); n != 6 {
		t.Errorf("there are %d services", n)
	}
}

func TestFixesUseTheCommandsOfTheManagedService(t *testing.T) {
	f := well()
	f.server.value.Roles = []string{"rds_superuser"}
	j := newDatabaseJudge(defaults(), f)
	text := fmt.Sprint(j.cure([]string{j.limit(), "set wal_sender_timeout 60s", "set autovacuum on"}))
	for _, words := range []string{
		"ParameterName=max_slot_wal_keep_size,ParameterValue=10240,ApplyMethod=immediate",
		"ParameterName=wal_sender_timeout,ParameterValue=60000,ApplyMethod=immediate", "ParameterName=autovacuum,ParameterValue=1,",
	} {
		if !strings.Contains(text, words) {
			t.Errorf("not said: %s\n%s", words, text)
		}
	}
}

// RabbitMQ 4.2.6 and 4.3.0 ask for configure at a look-up. Only 404 says that something is missing; the answer to a
// test message says more.
func TestARejectedLookUpIsNoVerdict(t *testing.T) {
	exception := func(code int) error {
		return &amqp091.Error{Code: code, Reason: fmt.Sprintf("%d - configure access refused", code)}
	}
	const cure = "4.2.7 or 4.3.1, or grant the user configure"
	for name, c := range map[string]struct {
		lookUp, write error
		level         Level
		says, fix     string
	}{
		"403, and the message is accepted": {exception(403), nil, Warning, "is unknown: RabbitMQ 4.2.6 rejects the look-up: 403", cure},
		"403, and the message is not":      {exception(403), exception(403), Warning, "is unknown", cure},
		"403, and the message finds none":  {exception(403), exception(404), Problem, "does not exist", "curl"},
		"404":                              {exception(404), nil, Problem, "does not exist", "curl"},
		"405":                              {exception(405), nil, Warning, "is unknown", "see RabbitMQ's log"},
		"406":                              {exception(406), nil, Warning, "is unknown", "see RabbitMQ's log"},
		"none":                             {nil, nil, OK, "exists", ""},
	} {
		x, q := destination{exchange: "shop", routingKey: "k"}, destination{routingKey: "orders"}
		b := &brokerFacts{
			version: "4.2.6", asked: []destination{x, q}, exchanges: map[string]error{"shop": c.lookUp},
			queues: map[string]error{"orders": c.lookUp}, writes: map[destination]error{{}: nil},
			management: managementFacts{err: errors.New("none")},
		}
		b.wrote(x, c.write)
		var told []Finding
		for _, f := range judgeBroker(defaults(), facts{database: well(), broker: b}) {
			if f.Name == "exchange" && strings.Contains(f.Message, "shop") {
				told = append(told, f)
			}
			if f.Name == "route" && f.Level == Problem && !isNotFound(c.lookUp) {
				t.Errorf("%s: a queue of unknown existence is a problem: %s", name, f.Message)
			}
			if f.Name == "route" && f.Level == OK && c.lookUp != nil && strings.Contains(f.Message, "2 routing keys") {
				t.Errorf("%s: a queue of unknown existence is fine: %s", name, f.Message)
			}
		}
		if len(told) != 1 || told[0].Level != c.level || !strings.Contains(told[0].Message, c.says) || !strings.Contains(strings.Join(told[0].Fix, " "), c.fix) {
			t.Errorf("%s: got %+v", name, told)
		}
	}
}

func TestRoutesThroughUnexaminedExchangesAreUnknown(t *testing.T) {
	f := managementFacts{
		exchanges: map[string]exchangeFacts{
			"asked": {Name: "asked", Type: "direct"}, "leads on": {Name: "leads on", Type: "fanout"}, "guarded": {
				Name: "guarded", Type: "direct", Arguments: map[string]any{"alternate-exchange": "not asked"},
			}, "not asked": {Name: "not asked", Type: "direct"},
		},
		bindings: map[string][]binding{
			"asked": nil, "leads on": {{Destination: "not asked", DestinationType: "exchange"}}, "guarded": nil,
		},
	}
	for exchange, unasked := range map[string]bool{"asked": false, "leads on": true, "guarded": true, "not asked": true, "no such": false} {
		if r := f.route(exchange, "k"); r.unasked != unasked || r.perhaps || r.reaches {
			t.Errorf("%s: got %+v", exchange, r)
		}
	}
}

func TestTLSFindings(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	certificate := func(left time.Duration) *tls.ConnectionState {
		return &tls.ConnectionState{Version: tls.VersionTLS13, PeerCertificates: []*x509.Certificate{{
			Subject: pkix.Name{CommonName: "mq.example"}, NotAfter: now.Add(left),
		}}}
	}
	for name, test := range map[string]struct {
		facts encryption
		level Level
		words string
	}{
		"none, here":    {encryption{local: true}, OK, "does not leave this machine"},
		"none, there":   {encryption{}, Warning, "in clear"},
		"valid a while": {encryption{tls: certificate(90 * 24 * time.Hour), verified: true}, OK, "TLS 1.3 to RabbitMQ, certificate of mq.example, valid until 2030-04-01"},
		"not verified":  {encryption{tls: certificate(-time.Hour)}, OK, "is not verified"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []Finding
			test.facts.judge(chart{RabbitMQ, "", &found}, "RabbitMQ", nil, now)
			if f := found[0]; f.Level != test.level || !strings.Contains(f.Message, test.words) {
				t.Errorf("got %s: %s", f.Level, f.Message)
			}
		})
	}
}

func TestQuorumQueuesHaveADeliveryLimitByDefault(t *testing.T) {
	for name, test := range map[string]struct {
		version, queue string
		limit          any
		words          string
	}{
		"default": {"4.1.0", "quorum", nil, "delivered too often (delivery-limit 20, the default of RabbitMQ 4)"},
		"old":     {"3.13.7", "quorum", nil, ""},
		"none":    {"4.1.0", "quorum", -1.0, ""},
		"classic": {"4.1.0", "classic", nil, ""},
		"own":     {"3.13.7", "quorum", 3.0, "(delivery-limit 3)"},
	} {
		var found []Finding
		q := queueFacts{Name: "q", Type: test.queue, Arguments: map[string]any{"x-delivery-limit": test.limit}}
		j := &brokerJudge{f: brokerFacts{version: test.version, management: managementFacts{queues: map[string]queueFacts{"q": q}}}}
		j.judgeQueues(chart{Routing, "", &found})
		if got := fmt.Sprint(found); (len(found) > 0) != (test.words != "") || !strings.Contains(got, test.words) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestConnectionsThatLeaveTheMachineAreRecognised(t *testing.T) {
	for address, local := range map[net.Addr]bool{
		&net.UnixAddr{Name: "/run/postgresql/.s.PGSQL.5432", Net: "unix"}: true,
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}:                          true,
		&net.TCPAddr{IP: net.IPv4(127, 1, 2, 3)}:                          true,
		&net.TCPAddr{IP: net.IPv6loopback}:                                true,
		&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}:                           false,
		&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}:                      false,
	} {
		for _, conn := range []net.Conn{addressed{address: address}, tls.Client(addressed{address: address}, &tls.Config{})} { //nolint:gosec // no handshake
			if e := encryptionOf(conn, false); e.local != local || (e.tls == nil) != (conn == addressed{address: address}) {
				t.Errorf("%s: %+v", address, e)
			}
		}
	}
}

type addressed struct {
	net.Conn
	address net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.address }

func TestBrokerConnectionErrorsGetAFix(t *testing.T) {
	reset := &net.OpError{Op: "write", Err: syscall.ECONNRESET}
	uri, err := amqp091.ParseURI("amqps://guest:guest@localhost/")
	services.Must(t, err)
	for name, test := range map[string]struct {
		err        error
		check, fix string
	}{
		"guest from afar":   {&amqp091.Error{Code: 403, Reason: "user 'guest' can only connect via localhost"}, "login", "rabbitmqctl add_user relay"},
		"limit of the node": {&amqp091.Error{Code: 530, Reason: "connection refused: node connection limit (1) is reached"}, "vhost", "connection_max"},
		"a vhost is down":   {&amqp091.Error{Code: 541, Reason: "INTERNAL_ERROR - access to vhost '/' refused for user 'u': vhost '/' is down"}, "vhost", "rabbitmqctl restart_vhost -p /"},
		"it goes down":      {&amqp091.Error{Code: 320, Reason: "CONNECTION_FORCED - vhost '/' is down"}, "vhost", "rabbitmqctl restart_vhost -p /"},
		"it is deleted":     {&amqp091.Error{Code: 320, Reason: "CONNECTION_FORCED - vhost '/' is deleted"}, "vhost", "add_vhost"},
		"maintenance":       {&amqp091.Error{Code: 320, Reason: "CONNECTION_FORCED - Node was put into maintenance mode"}, "vhost", "rabbitmq-upgrade revive"},
		"a name like down":  {&amqp091.Error{Code: 530, Reason: "access to vhost 'is down' refused for user 'u'"}, "vhost", "set_permissions"},
		"a name with limit": {&amqp091.Error{Code: 530, Reason: "access to vhost '/' refused for user 'limited'"}, "vhost", "set_permissions"},
		"expired":           {fmt.Errorf("tls: %w", x509.CertificateInvalidError{Reason: x509.Expired}), "reachable", "renew"},
		"hung up":           {reset, "reachable", "certfile"},
		"hung up, unread":   {amqp091.ErrClosed, "reachable", "certfile"},
		"asked for another": {&amqp091.Error{Code: 501, Reason: "remote error: tls: certificate required"}, "reachable", "certfile"},
	} {
		t.Run(name, func(t *testing.T) {
			f := judgeBroker(defaults(), facts{broker: &brokerFacts{unreachable: amqpdial.Undialled(uri, test.err)}})
			if len(f) != 1 || f[0].Level != Problem || f[0].Name != test.check || !strings.Contains(strings.Join(f[0].Fix, "\n"), test.fix) {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// The texts are RabbitMQ's. The name of an exchange says nothing about the cause.
func TestTheFixForARejectedPublishFollowsTheCause(t *testing.T) {
	for text, want := range map[string]string{
		"ACCESS_REFUSED - access to exchange 'internal' in vhost '/' refused for user 'relay'": "rabbitmqctl set_permissions",
		"ACCESS_REFUSED - cannot publish to internal exchange 'shop' in vhost '/'":             "an internal one rejects",
	} {
		if got := new(brokerJudge).permitFix("", &amqp091.Error{Code: 403, Reason: text}).lines(); !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("%s: got %s", text, got)
		}
	}
}

func TestShellWordsAreQuoted(t *testing.T) {
	for word, want := range map[string]string{"plain_1": "plain_1", "": "''", "two words": "'two words'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "^a$": "'^a$'"} {
		if got := shell(word); got != want {
			t.Errorf("%q: got %s", word, got)
		}
	}
}

func TestOnlyStepsThatAreSafeBecomeRepairs(t *testing.T) {
	var found []Finding
	c := chart{findings: &found}
	c.wrong("", lines(sql("GRANT SELECT ON a TO b").safe(), remark("-- or not")), "")
	c.wrong("", sql("GRANT SELECT ON a TO b").safe(), "") // once is enough
	c.add(OK, "", sql("GRANT SELECT ON c TO d").safe(), "")
	c.wrong("", lines(sql("SELECT 1"), (&databaseJudge{o: defaults()}).setupCommand()), "")
	c.warn("", sql(`ALTER TABLE "a;  -- b" SET (x=1)`).noted("at once").safe(), "")
	c.wrong("", (&databaseJudge{o: defaults()}).setupCommand().noted("as the owner of the table"), "")
	c.wrong("", command("cdc-relay teardown"), "")
	want := []Repair{
		{SQL: "GRANT SELECT ON a TO b", line: "GRANT SELECT ON a TO b;"},
		{SQL: `ALTER TABLE "a;  -- b" SET (x=1)`, line: `ALTER TABLE "a;  -- b" SET (x=1);`},
		{Setup: true, line: "cdc-relay setup"},
	}
	if got := Repairs(found); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
