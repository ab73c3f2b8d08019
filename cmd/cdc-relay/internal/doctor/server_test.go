package doctor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestAHealthyDatabasePasses(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.Warning, doctor.Slot, "active", "cdc-relay run")
	r.want(doctor.Warning, doctor.Slot, "max_slot_wal_keep_size", "a limit is safe", "SET max_slot_wal_keep_size = '10GB'")
}

func TestAServerWithoutFreeSlotsIsReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_replication_slots=1", "max_wal_senders=1", "autovacuum=off", "wal_sender_timeout=1s")
	p := healthyTables(t, server)
	p.exec("SELECT pg_create_physical_replication_slot('somebody')", "CREATE PUBLICATION "+p.Publication+" FOR TABLE outbox")
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "max_replication_slots", "1 of 1 are in use", "not active are somebody", "SET max_replication_slots = '11'", "restart")
	r.want(doctor.OK, doctor.Postgres, "max_wal_senders")
	r.want(doctor.Warning, doctor.Postgres, "wal_sender_timeout", "1000ms", "SET wal_sender_timeout = '60s'")
	r.want(doctor.Warning, doctor.Cleanup, "autovacuum", "off on this server", "SET autovacuum = 'on'")

	p.Slot = "somebody"
	p.examine().want(doctor.OK, doctor.Postgres, "max_replication_slots", "1 of 1")

	var taken *pgx.Conn
	await.Until(t, "the examination's own connection has ended", func() (free bool) {
		var err error
		taken, err = p.Connect(t.Context(), map[string]string{"replication": "database"})
		return err == nil
	})
	defer taken.Close(context.Background()) //nolint:errcheck // the server ends after it
	// It counts as a walsender at once, but is listed only when it begins to send.
	r = p.examine()
	r.want(doctor.Problem, doctor.Postgres, "replication", "no replication connection is free", "max_wal_senders")
}

func TestTransactionsThatHoldBackVacuumAreReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_prepared_transactions=5", "autovacuum_naptime=1h")
	p := healthy(t, server)
	p.exec("SELECT pg_drop_replication_slot('" + p.Slot + "')")
	holder := tabletest.Connect(t, p.URL)
	tabletest.Run(t, holder, "BEGIN; CREATE TABLE held ()")
	p.exec("BEGIN", "CREATE TABLE prepared ()", "PREPARE TRANSACTION 'it''s'")
	await.Until(t, "the transaction is old enough to be reported", func() bool { return hasWarning(p.examine(), "slot_blocker") })
	r := p.examine()
	r.want(doctor.Warning, doctor.Slot, "slot_blocker", "waits for the transaction of Postgres process", "pg_terminate_backend")
	r.want(doctor.OK, doctor.Cleanup, "transactions", "the oldest is open for", "idle in transaction")
	await.Until(t, "the prepared transaction is old enough to be reported", func() bool {
		r = p.examine()
		return hasWarning(r, "prepared_transactions") && hasWarning(r, "transactions")
	})
	r.want(doctor.Warning, doctor.Cleanup, "prepared_transactions", "-- ask its owner", "COMMIT PREPARED 'it''s', or ROLLBACK PREPARED 'it''s', which destroys")
	p.exec("ROLLBACK PREPARED 'it''s'")
	p.fix(r.finding(doctor.Slot, "slot_blocker"))
	p.fix(p.examine().want(doctor.Problem, doctor.Slot, "slot"))
	p.examine().wantOthersOK()
}

func TestDeadRowsAreReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	p := healthy(t, services.PrivatePostgres(t, "autovacuum_naptime=1h"))
	p.exec("INSERT INTO outbox (routing_key, payload) SELECT 'k', '1' FROM generate_series(1, 120000)", "DELETE FROM outbox")
	await.Until(t, "the statistics count the dead rows", func() bool {
		return p.examine().finding(doctor.Cleanup, "dead_rows").Level == doctor.Warning
	})
	p.fix(p.examine().want(doctor.Warning, doctor.Cleanup, "dead_rows", "about 120000 dead rows", "never vacuumed", `VACUUM (ANALYZE) "public"."outbox"`))
	await.Until(t, "the statistics show the VACUUM", func() bool {
		return p.examine().finding(doctor.Cleanup, "dead_rows").Level == doctor.OK
	})
}

func TestAStandbyThatHoldsBackVacuumIsReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t)
	standby := services.Standby(t, server)
	p := healthy(t, server)
	at := *p
	u := throughPort(t, p.URL, standby.Addr())
	await.Until(t, "the standby has the database", func() bool {
		conn, err := pgx.Connect(t.Context(), u)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err == nil
	})
	at.as(u)
	at.examine().want(doctor.Problem, doctor.Postgres, "primary", "is a standby", "target_session_attrs=read-write")
	await.Until(t, "the standby's feedback has arrived", func() bool {
		var held bool
		must(t, p.Conn.QueryRow(t.Context(), "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = 'standby'").Scan(&held))
		return held
	})
	p.examine().wantOthersOK()
	if server.Major() >= 17 {
		p.failover(server)
	}
	must(t, standby.Close(t.Context()))
	await.Until(t, "the slot is inactive", func() bool {
		return p.examine().finding(doctor.Cleanup, "transactions").Level == doctor.OK && hasWarning(p.examine(), "standby_horizon")
	})
	p.examine().want(doctor.Warning, doctor.Cleanup, "standby_horizon", "slot standby prevents", "pg_drop_replication_slot('standby')")
	if server.Major() >= 17 {
		p.examine().want(doctor.Warning, doctor.Slot, "failover", "waits for standbys that are down", "standby")
	}
}

func hasWarning(r report, name string) bool {
	for _, f := range r.findings {
		if f.Name == name && f.Level == doctor.Warning {
			return true
		}
	}
	return false
}

// failover makes the slot a failover slot, which the standby copies.
func (p *patient) failover(server *services.Postgres) {
	p.Helper()
	p.examine().want(doctor.OK, doctor.Slot, "failover", "off: after a failover")
	p.FailoverSlot = true
	p.examine().want(doctor.Warning, doctor.Slot, "failover", "is no failover slot", "cdc-relay setup", "--failover-slot")
	p.exec("SELECT pg_drop_replication_slot('"+p.Slot+"')", "SELECT pg_create_logical_replication_slot('"+p.Slot+"', 'pgoutput', failover => true)",
		"ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")
	p.examine().want(doctor.OK, doctor.Slot, "failover", "on: a standby")
	if server.Major() >= 18 {
		p.exec("ALTER SYSTEM SET idle_replication_slot_timeout = '3d'", "SELECT pg_reload_conf()")
		await.Until(p, "the setting is known", func() bool {
			return strings.Contains(p.examine().finding(doctor.Slot, "idle_replication_slot_timeout").Message, "3 days")
		})
	}
}

func TestBrokenStreamsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, map[string]breakage{
		"no publication":                  wrong("publication/publication", "DROP PUBLICATION $PUB", "does not exist", "CREATE PUBLICATION"),
		"a publication without the table": wrong("publication/publication", "CREATE TABLE other (id int); ALTER PUBLICATION $PUB SET TABLE other", "does not contain the table", "ADD TABLE"),
		"a publication without inserts":   wrong("publication/publication", "ALTER PUBLICATION $PUB SET (publish = 'update')", "does not publish inserts", "publish = 'insert'"),
		"updates and deletes published":   warns("publication/insert_only", "ALTER PUBLICATION $PUB SET (publish = 'insert, update, delete')", "deletes, updates", "publish = 'insert'"),
		"the publication of another outbox": wrong("publication/publication", "CREATE TABLE box (id int); CREATE TABLE box_dead_letter (id int); ALTER PUBLICATION $PUB SET TABLE box",
			"publishes public.box instead of the table",
			"cdc-relay setup --slot cdc_relay_outbox --publication cdc_relay_outbox  # and run with the same names").keep(),
		"another outbox in the publication": warns("publication/other_tables", "CREATE TABLE box (id int); CREATE TABLE box_dead_letter (id int); ALTER PUBLICATION $PUB ADD TABLE box",
			"publishes other outboxes as well", "--publication cdc_relay_outbox").keep(),
		"another table in the publication": warns("publication/other_tables", "CREATE TABLE other (id int); ALTER PUBLICATION $PUB ADD TABLE other", "1 other tables", "SET TABLE"),
		"a publication for all tables": warns("publication/other_tables", "DROP PUBLICATION $PUB; CREATE PUBLICATION $PUB FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)",
			"FOR ALL TABLES", "cdc-relay setup --slot"),
		"a row filter":  wrong("publication/row_filter", "ALTER PUBLICATION $PUB SET TABLE outbox WHERE (id > 5)", "(id > 5)", "SET TABLE"),
		"a column list": wrong("publication/column_list", "ALTER PUBLICATION $PUB SET TABLE outbox (id, routing_key, payload)", "id, routing_key, payload", "SET TABLE"),
		"a column list beside another table": wrong("publication/column_list",
			"CREATE TABLE other (id int); ALTER PUBLICATION $PUB SET TABLE other, outbox (id, routing_key, payload)", "DROP TABLE public.outbox", "ADD TABLE public.outbox"),
		"no slot": wrong("slot/slot", "SELECT pg_drop_replication_slot('$SLOT')", "does not exist", "cdc-relay setup --slot"),
		"a slot of another plugin": wrong("slot/slot", "SELECT pg_drop_replication_slot('$SLOT'); SELECT pg_create_logical_replication_slot('$SLOT', 'test_decoding')",
			"not a pgoutput slot", "--slot NAME").keep(),
		"a slot of another database": wrong("slot/slot", "", "belongs to another database", "cdc-relay setup --slot NAME").after(func(p *patient) {
			p.Slot = healthy(t, services.SharedPostgres(t)).Slot
		}).keep(),
	})
}

func TestTheFixOfAShardKeepsItsRowFilter(t *testing.T) {
	server := services.SharedPostgres(t)
	p := onDatabase(t, server.Database(t))
	p.Shard = outbox.Shard{Index: 0, Of: 2}
	p.Slot, p.Publication = p.Slot+p.Shard.NameSuffix(), p.Publication+p.Shard.NameSuffix()
	p.setup()
	p.examine().wantOthersOK()
	p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" ADD TABLE other")
	p.fix(p.examine().want(doctor.Warning, doctor.Publication, "other_tables", "SET TABLE"))
	p.examine().wantOthersOK()
}

// A server that may retain 10 MB of WAL invalidates a slot that nobody reads.
func TestALostSlotIsReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_slot_wal_keep_size=1MB", "max_wal_size=1GB", "checkpoint_timeout=1h")
	p := healthy(t, server)
	r := p.examine()
	r.want(doctor.Warning, doctor.Slot, "max_slot_wal_keep_size", "1 MB is little", "a limit is safe")
	r.want(doctor.OK, doctor.Slot, "lag", "until the server invalidates the slot")
	switchWAL := func() {
		p.exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))", "SELECT pg_switch_wal()")
	}
	for range 3 {
		switchWAL()
	}
	p.examine().want(doctor.Warning, doctor.Slot, "lag", "invalidates the slot at the next checkpoint")
	for range 3 {
		switchWAL()
		p.exec("CHECKPOINT")
	}
	p.fix(p.examine().want(doctor.Problem, doctor.Slot, "slot", "invalidated slot", "Nothing is lost", "SELECT pg_catalog.pg_drop_replication_slot('"+p.Slot+"')", "cdc-relay setup"))
	p.examine().wantOthersOK()
}
