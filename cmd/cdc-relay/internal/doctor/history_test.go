package doctor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// keeping is a relay with a history, after setup and a run.
func keeping(t *testing.T, keep time.Duration) *patient {
	t.Helper()
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	p.KeepPublished = keep
	p.setup()
	p.exec(fmt.Sprintf("SELECT outbox_rotate(interval '%.0f s')", keep.Seconds()))
	return p
}

const insertPublished = `INSERT INTO outbox_published (id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
	SELECT i, now(), %s, gen_random_uuid(), 0, 1, 'r', '1' FROM generate_series(1, 3) i`

func (p *patient) day(offset int) string {
	p.Helper()
	return tabletest.One[string](p, `SELECT 'outbox_p' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')`, offset)
}

func TestAHealthyHistoryPasses(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	p.KeepPublished = 168 * time.Hour
	p.setup()
	p.examine().wantOthersOK() // no relay has run yet
	p.exec("SELECT outbox_rotate(interval '168 h')")
	role := p.relayRole("REPLICATION")
	p.exec("GRANT INSERT ON outbox_published TO "+role, "GRANT EXECUTE ON FUNCTION outbox_rotate(interval) TO "+role)
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Tables, "history", "partitions for today and tomorrow", "none older than 168h")
	p.KeepPublished = 0
	r = p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Tables, "history", "exists, but --keep-published is not set")
}

func brokenHistories() map[string]breakage {
	const unmoved = "published rows cannot be moved there and stay in the outbox"
	history := func(level doctor.Level, change string, words ...string) breakage {
		return broken(level, "tables/history", change, words)
	}
	column := func(change string, words ...string) breakage {
		return wrong("tables/column", change, words...)
	}
	return map[string]breakage{
		"no history":  history(doctor.Problem, "DROP TABLE outbox_published", "public.outbox_published does not exist", "relays with --keep-published exit", "cdc-relay setup --slot ", " --keep-published 168h"),
		"no function": history(doctor.Problem, "DROP FUNCTION outbox_rotate", "function public.outbox_rotate does not exist", "relays with --keep-published exit", " --keep-published 168h"),
		"a view": history(doctor.Problem, "DROP TABLE outbox_published; CREATE VIEW outbox_published AS SELECT * FROM outbox",
			"is a view, and has to be a table", unmoved, `ALTER VIEW "public"."outbox_published" RENAME TO "outbox_published_view";`),
		"an ordinary table": history(doctor.Warning, "DROP TABLE outbox_published; CREATE TABLE outbox_published AS SELECT o.*, now() AS published_at FROM outbox o",
			"is not partitioned", "old ones are never dropped", `RENAME TO "outbox_published_table";`),
		"a column less":     history(doctor.Problem, "ALTER TABLE outbox_published RENAME COLUMN headers TO old_headers", "has no column headers", unmoved, `RENAME COLUMN "old_headers" TO "headers";`),
		"a column of text":  column("ALTER TABLE outbox_published ALTER message_id TYPE text", "message_id of public.outbox_published is text, and has to be uuid", unmoved),
		"a column too many": column("ALTER TABLE outbox_published ADD note text NOT NULL", "note of public.outbox_published is not the relay's", unmoved),
		"a column not null": column("ALTER TABLE outbox_published ALTER exchange SET NOT NULL", "exchange of public.outbox_published is NOT NULL", unmoved),
		"a trigger": wrong("tables/triggers", returnsNull+"CREATE TRIGGER guard BEFORE INSERT ON outbox_published FOR EACH ROW EXECUTE FUNCTION f()",
			"trigger guard of public.outbox_published", "published messages are not kept", `DISABLE TRIGGER "guard"`),
		"a trigger of a partition": wrong("tables/triggers", returnsNull+"CREATE TRIGGER guard BEFORE INSERT ON $DAY0 FOR EACH ROW EXECUTE FUNCTION f()",
			"trigger guard of public.outbox_p2", "published messages are not kept", `DISABLE TRIGGER "guard"`),
		"a constraint": wrong("tables/constraints", "ALTER TABLE outbox_published ADD CONSTRAINT short CHECK (length(routing_key) < 3)",
			"constraint short of public.outbox_published", unmoved,
			`ALTER TABLE "public"."outbox_published" DROP CONSTRAINT "short";`),
		"a constraint of a partition": wrong("tables/constraints", "CREATE TABLE topics (name text PRIMARY KEY); ALTER TABLE outbox_p ADD CONSTRAINT known FOREIGN KEY (routing_key) REFERENCES topics",
			"constraint known of public.outbox_p", unmoved),
		"a unique index of a partition": wrong("tables/constraints", "CREATE UNIQUE INDEX once ON outbox_p (routing_key); CREATE UNIQUE INDEX ON outbox_published (id, published_at)",
			"unique index public.once of public.outbox_p", unmoved),
		"a foreign key to a partition": warns("tables/references", "CREATE TABLE audit (message bigint, at timestamptz, FOREIGN KEY (message, at) REFERENCES outbox_p)",
			"refers to public.outbox_p", "old days of the history cannot be dropped"),
		"an unlogged partition": warns("tables/table", "ALTER TABLE outbox_p SET UNLOGGED", "public.outbox_p is UNLOGGED",
			"its published messages are lost in a crash"),
		"no partition for today": history(doctor.Warning, "DROP TABLE $DAY0", "has no partition for today", "go to the default partition", "deleted row by row",
			`SELECT "public"."outbox_rotate"(interval '604800 s');`),
		"no partition for tomorrow": history(doctor.Warning, "DROP TABLE $DAY1", "has no partition for tomorrow", "outbox_rotate"),
		"rows of today in the default partition": history(doctor.Warning, "DROP TABLE $DAY0; "+fmt.Sprintf(insertPublished, "now()"),
			"has no partition for today", "INSERT INTO public.outbox_p2", "ATTACH PARTITION"),
		"a detached day": history(doctor.Warning, fmt.Sprintf(insertPublished, "now()")+"; ALTER TABLE outbox_published DETACH PARTITION $DAY0",
			"has no partition for today", "ATTACH PARTITION"),
		"no default partition":         history(doctor.Problem, "DROP TABLE outbox_p", "has no default partition", unmoved, `PARTITION OF "public"."outbox_published" DEFAULT`),
		"a detached default partition": history(doctor.Problem, "ALTER TABLE outbox_published DETACH PARTITION outbox_p", "has no default partition", `ATTACH PARTITION "public"."outbox_p" DEFAULT;`),
		"old days": history(doctor.Warning, "CREATE TABLE outbox_p20200101 PARTITION OF outbox_published FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')",
			"1 partition, the oldest public.outbox_p20200101, should have been dropped", "the disk fills"),
		"old rows without a day": history(doctor.Warning, fmt.Sprintf(insertPublished, "now() - interval '10 days'"), "rows of the default partition public.outbox_p should have been dropped"),
		"a function of another owner": history(doctor.Warning, "GRANT CREATE ON SCHEMA public TO $ROLE; ALTER FUNCTION outbox_rotate OWNER TO $ROLE",
			"function public.outbox_rotate belongs to role", "cdc-relay setup", "drops and creates it").after(func(p *patient) { p.named, _ = p.Role("") }),
		"a day of another owner": history(doctor.Warning, "ALTER TABLE $DAY1 OWNER TO postgres",
			"does not own public.outbox_p2", "neither created nor dropped", "OWNER TO").after((*patient).ownedByRole),
		"an owner without the schema": history(doctor.Warning, "REVOKE CREATE ON SCHEMA public FROM $ROLE, PUBLIC",
			"may not create tables in schema public", "GRANT CREATE ON SCHEMA").after((*patient).ownedByRole),
	}
}

// ownedByRole gives the outbox and its history to a role that is no superuser.
func (p *patient) ownedByRole() {
	p.Helper()
	p.named, _ = p.Role("")
	p.exec("GRANT CREATE, USAGE ON SCHEMA public TO "+p.named, "ALTER FUNCTION outbox_rotate OWNER TO "+p.named)
	for _, table := range []string{"outbox", "outbox_dead_letter", "outbox_published", "outbox_p", p.day(0), p.day(1), p.day(2)} {
		p.Exec("ALTER TABLE " + table + " OWNER TO " + p.named)
	}
}

func TestBrokenHistoriesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	for name, test := range brokenHistories() {
		t.Run(name, func(t *testing.T) {
			p := keeping(t, 168*time.Hour)
			test.breaks(p)
			p.fix(p.examine().want(test.level, test.area, test.check, test.words...))
			p.setup() // what the first fix made possible
			p.exec("SELECT outbox_rotate(interval '168 h')")
			r := p.examine()
			r.wantOthersOK()
			r.want(doctor.OK, doctor.Tables, "history")
		})
	}
}

// They move from the default partition to the new one.
func TestTheFixOfAMissingDayKeepsItsRows(t *testing.T) {
	p := keeping(t, 168*time.Hour)
	p.exec("DROP TABLE "+p.day(0), fmt.Sprintf(insertPublished, "now()"))
	p.fix(p.examine().want(doctor.Warning, doctor.Tables, "history"))
	if rows := tabletest.One[string](p, "SELECT (SELECT count(*) FROM "+p.day(0)+") || ' ' || (SELECT count(*) FROM outbox_p)"); rows != "3 0" {
		t.Errorf("rows in the partition, and in the default one: %s", rows)
	}
}

func TestMissingGrantsForTheHistoryAreReported(t *testing.T) {
	p := keeping(t, time.Hour)
	p.relayRole("REPLICATION")
	r := p.examine()
	r.want(doctor.Problem, doctor.Grants, "relay", "may not INSERT on table public.outbox_published")
	for range 2 { // one finding for each
		p.fix(p.examine().want(doctor.Problem, doctor.Grants, "relay"))
	}
	p.examine().wantOthersOK()
}

func TestAHistoryWithAQuotedNameIsExamined(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	p.Table, p.KeepPublished = outbox.Table{Schema: "My Schema", Name: `It's"`}, 36*time.Hour
	p.setup()
	p.exec(`CREATE TABLE "My Schema"."It's""_p20200101" PARTITION OF "My Schema"."It's""_published" FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z')`)
	p.fix(p.examine().want(doctor.Warning, doctor.Tables, "history", "should have been dropped"))
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Tables, "history")
}
