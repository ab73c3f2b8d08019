package doctor_test

import (
	"context"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestBrokenStreamsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, map[string]breakage{
		"no publication": broken(doctor.Problem, doctor.Publication, "publication",
			"DROP PUBLICATION $PUB", "does not exist", "CREATE PUBLICATION"),
		"a publication without the table": broken(doctor.Problem, doctor.Publication, "publication",
			"CREATE TABLE other (id int); ALTER PUBLICATION $PUB SET TABLE other", "does not contain the table", "ADD TABLE"),
		"a publication without inserts": broken(doctor.Problem, doctor.Publication, "publication",
			"ALTER PUBLICATION $PUB SET (publish = 'update')", "does not publish inserts", "publish = 'insert'"),
		"updates and deletes published": broken(doctor.Warning, doctor.Publication, "insert_only",
			"ALTER PUBLICATION $PUB SET (publish = 'insert, update, delete')", "deletes, updates", "publish = 'insert'"),
		"the publication of another outbox": broken(doctor.Problem, doctor.Publication, "publication",
			"CREATE TABLE box (id int); CREATE TABLE box_dead_letter (id int); ALTER PUBLICATION $PUB SET TABLE box",
			"publishes public.box instead of the table",
			"cdc-relay setup --slot cdc_relay_outbox --publication cdc_relay_outbox  # and run with the same names").keep(),
		"another outbox in the publication": broken(doctor.Warning, doctor.Publication, "other_tables",
			"CREATE TABLE box (id int); CREATE TABLE box_dead_letter (id int); ALTER PUBLICATION $PUB ADD TABLE box",
			"publishes other outboxes as well", "--publication cdc_relay_outbox").keep(),
		"another table in the publication": broken(doctor.Warning, doctor.Publication, "other_tables",
			"CREATE TABLE other (id int); ALTER PUBLICATION $PUB ADD TABLE other", "1 other tables", "SET TABLE"),
		"a publication for all tables": broken(doctor.Warning, doctor.Publication, "other_tables",
			"DROP PUBLICATION $PUB; CREATE PUBLICATION $PUB FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)",
			"FOR ALL TABLES", "cdc-relay setup --slot"),
		"no slot": broken(doctor.Problem, doctor.Slot, "slot",
			"SELECT pg_drop_replication_slot('$SLOT')", "does not exist", "cdc-relay setup --slot"),
		"a slot of another plugin": {func(p *patient) {
			drop := "SELECT pg_catalog.pg_drop_replication_slot('" + p.Slot + "')"
			p.exec(drop, "SELECT pg_create_physical_replication_slot('"+p.Slot+"')")
			p.t.Cleanup(func() { // it belongs to no database and would outlive this one
				_, _ = p.conn.Exec(context.Background(), drop)
			})
		}, doctor.Problem, doctor.Slot, "slot", []string{"not a pgoutput slot", "--slot NAME"}, true},
	})
}

func TestRowFiltersAndColumnListsAreReported(t *testing.T) {
	server := services.SharedPostgres(t)
	p := healthy(t, server)
	p.exec("ALTER PUBLICATION " + p.Publication + " SET TABLE outbox WHERE (id > 5)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "row_filter", "(id > 5)", "SET TABLE"))
	p.examine().wantOthersOK()
	p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" SET TABLE other, outbox (id, routing_key, payload)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "column_list", "DROP TABLE", "ADD TABLE"))
	p.examine().want(doctor.Warning, doctor.Publication, "other_tables", "1 other tables")
	p.examine().wantOthersOK("other_tables")
	p.exec("ALTER PUBLICATION " + p.Publication + " SET TABLE outbox (id, routing_key, payload)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "column_list", "id, routing_key, payload", "SET TABLE"))
	p.examine().wantOthersOK()
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

func TestASlotOfAnotherDatabaseIsReported(t *testing.T) {
	server := services.SharedPostgres(t)
	other, p := healthy(t, server), healthy(t, server)
	p.Slot = other.Slot
	p.examine().want(doctor.Problem, doctor.Slot, "slot", "belongs to another database", "cdc-relay setup --slot NAME")
}

// A server that may retain 10 MB of WAL invalidates a slot that nobody reads.
func TestALostSlotIsReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "max_slot_wal_keep_size=1MB", "max_wal_size=1GB", "checkpoint_timeout=1h")
	p := healthy(t, server)
	r := p.examine()
	r.want(doctor.Warning, doctor.Slot, "max_slot_wal_keep_size", "1.0 MB is little", "a limit is safe")
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
