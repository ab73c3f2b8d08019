package doctor

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const tablesSQL = `
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = $1),
tables AS (SELECT c.* FROM pg_class c, schema WHERE c.relnamespace = schema.oid AND c.relname = ANY ($2::text[])
           AND c.relkind IN ('r', 'p')),
sequence AS (
  SELECT s.oid, jsonb_build_object('schema', n.nspname, 'name', s.relname) AS name
  FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = 'id'
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.refobjsubid = a.attnum
    AND d.deptype IN ('a', 'i')
  JOIN pg_class s ON d.classid = 'pg_class'::regclass AND s.oid = d.objid AND s.relkind = 'S'
  JOIN pg_namespace n ON n.oid = s.relnamespace
  WHERE t.relname = $3 LIMIT 1),
leaves AS (
  SELECT r.relname AS root, n.nspname, c.*
  FROM tables r, pg_partition_tree(r.oid) l JOIN pg_class c ON c.oid = l.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE r.relkind = 'p' AND l.isleaf AND c.relkind = 'r')
SELECT jsonb_build_object(
  'SchemaExists', EXISTS (SELECT FROM schema), 'SchemaUsage', (SELECT has_schema_privilege(oid, 'USAGE') FROM schema),
  'tables', (SELECT jsonb_object_agg(t.relname, jsonb_build_object(
     'kind', t.relkind, 'persistence', t.relpersistence,
     'childless', t.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partition_tree(t.oid) WHERE isleaf),
     'owner', pg_get_userbyid(t.relowner),
     'columns', ` + columnsSQL + `,
     'privileges', (SELECT jsonb_agg(p) FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
                    WHERE has_table_privilege(t.oid, p)),
     'hidden', row_security_active(t.oid),
     'secured', t.relrowsecurity AND NOT EXISTS (
       SELECT FROM pg_policy p WHERE p.polrelid = t.oid AND p.polpermissive AND p.polcmd IN ('a', '*')),
     'indexes', ` + indexesSQL + `, 'triggers', ` + triggersSQL + `, 'rules', ` + rulesSQL + `,
     'references', ` + referencesSQL + `, 'constraints', ` + constraintsSQL + `)) FROM tables t),
  'leaves', (SELECT jsonb_agg(jsonb_build_object(
     'root', t.root, 'table', jsonb_build_object('schema', t.nspname, 'name', t.relname),
     'persistence', t.relpersistence, 'triggers', ` + triggersSQL + `,
     'references', ` + referencesSQL + `, 'constraints', ` + constraintsSQL + `
   ) ORDER BY t.nspname, t.relname) FROM leaves t),
  'outboxes', (SELECT jsonb_agg(jsonb_build_object('schema', o.nspname, 'name', o.relname))
               FROM (` + schema.OutboxesSQL + `) o),
  'others', (SELECT jsonb_object_agg(o.name, o.kind) FROM (` + migrations.ObjectsSQL + `) o, schema
             WHERE o.namespace = schema.oid AND o.name = ANY ($2::text[]) AND o.kind <> 'TABLE'),
  'views', (SELECT jsonb_object_agg(v.relname, v.tables) FROM (
     SELECT c.relname, jsonb_agg(DISTINCT jsonb_build_object('schema', n.nspname, 'name', b.relname,
       'columns', (SELECT jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                   WHERE a.attrelid = b.oid AND a.attnum > 0 AND NOT a.attisdropped))) AS tables
     FROM schema JOIN pg_class c ON c.relnamespace = schema.oid JOIN pg_rewrite r ON r.ev_class = c.oid
     JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
       AND d.refobjid <> c.oid
     JOIN pg_class b ON b.oid = d.refobjid AND b.relkind IN ('r', 'p') JOIN pg_namespace n ON n.oid = b.relnamespace
     WHERE c.relname = ANY ($2::text[]) AND c.relkind = 'v' GROUP BY c.relname) v),
  'sequence', (SELECT name FROM sequence),
  'SequenceGranted', coalesce((SELECT has_sequence_privilege(oid, 'SELECT, USAGE') FROM sequence), true))`

type tablesFacts struct {
	SchemaExists, SchemaUsage bool
	Tables                    map[string]tableFacts // by name; only existing ones
	Leaves                    []leafFacts           // of partitioned tables
	// Others have the names of our tables but are of another kind. The value is the kind as ALTER writes it.
	Others map[string]string
	// Outboxes are up to five outboxes, in all schemas.
	Outboxes []outbox.Table
	// Views are the tables that these views read, by the name of the view.
	Views map[string][]viewedFacts
	// Sequence is the sequence of the column id; empty: there is none.
	Sequence        outbox.Table
	SequenceGranted bool
}

type tableFacts struct {
	Kind        string // relkind: r table, p partitioned
	Childless   bool   // partitioned, without a partition
	Persistence string // relpersistence: p permanent, u unlogged, t temporary
	Owner       string
	Columns     []columnFacts
	Privileges  []string // of the relay's role
	Hidden      bool     // row-level security applies to the relay's role
	Secured     bool     // row-level security is on, and no policy allows INSERT
	Indexes     []indexFacts
	Triggers    []triggerFacts // enabled triggers
	Rules       []string       // rules that rewrite statements
	References  []referenceFacts
	Constraints []constraintFacts
}

func (t tableFacts) partitioned() bool { return t.Kind == "p" }

// viewedFacts describe a table that a view reads.
type viewedFacts struct {
	Schema, Name string
	Columns      []string
}

// leafFacts describe a partition that stores rows, with what only the partition has.
type leafFacts struct {
	Root        string // the partitioned table
	Table       outbox.Table
	Persistence string
	Triggers    []triggerFacts
	References  []referenceFacts
	Constraints []constraintFacts
}

// tableNames are the tables of the outbox.
func (o Options) tableNames() []string {
	names := []string{
		migrations.VersionTable(o.Table).Name, o.Table.Published().Name, migrations.RelayTable(o.Table).Name,
	}
	for _, need := range schema.Needs(o.Table) {
		names = append(names, need.Table.Name)
	}
	return names
}

// judgeTable checks that a table exists, and what can be wrong with it.
func (j *databaseJudge) judgeTable(c chart, need schema.Need) {
	of := need.Table
	table, there := j.tables.Tables[of.Name]
	if kind, other := j.tables.Others[of.Name]; other {
		c.wrong("table", j.outOfTheWay(of, kind),
			"%s is %s, and has to be a table: nothing streams, and no row can be published",
			of, migrations.WithArticle(kind))
		return
	}
	if !there && j.absent && of != j.o.Table {
		return
	}
	if !there {
		which, repair := "", j.setupCommand()
		if of == j.o.Table { // perhaps the name is mistyped
			var meant string
			if which, meant = schema.Others(of, j.tables.Outboxes); meant != "" {
				repair = lines(remark("%s", meant), remark("# else: %s", repair[0].line()))
			}
		}
		c.wrong("table", repair, "table %s does not exist in database %q%s", of, j.server.Database, which)
		return
	}
	missing := j.judgeColumns(c, of, table)
	switch {
	case len(missing) > 0:
		c.wrong("table", j.restore(of, missing), "table %s has no column %s: no message can be published",
			of, columnNames(missing))
	case table.Persistence == "u":
		j.judgePersistence(c, of, of, table.Persistence)
	case table.Childless:
		one := outbox.Table{Schema: of.Schema, Name: of.Name + "_default"}
		c.wrong("table", sql("CREATE TABLE %s PARTITION OF %s DEFAULT", one.Printed(), of.Printed()),
			"table %s has no partition: every INSERT fails", of)
	default:
		c.ok("table", "%s, owned by %q", of, table.Owner)
	}
	if len(missing) == 0 {
		j.judgeIndexes(c, of, table)
	}
	j.judgeObstacles(c, of, table)
	if table.Secured {
		c.warn("row_security", lines(
			sql("CREATE POLICY outbox_insert ON %s FOR INSERT WITH CHECK (true)", of.Printed()),
			sql("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", of.Printed()).orElse()),
			"row-level security of %s has no policy for INSERT: "+
				"it rejects every row but those of the owner and of roles with BYPASSRLS", of)
	}
}

// judgeObstacles checks what can reject the statements of the relay, in a table and its partitions. Row-level security
// of a partition does not matter: the relay names the partitioned table.
func (j *databaseJudge) judgeObstacles(c chart, of outbox.Table, table tableFacts) {
	j.judgeTriggers(c, of, of, table.Triggers)
	j.judgeRules(c, of, table.Rules)
	j.judgeReferences(c, of, of, table.References)
	j.judgeConstraints(c, of, of, table.Constraints)
	for _, leaf := range j.tables.Leaves {
		if leaf.Root != of.Name {
			continue
		}
		one := c.about(leaf.Table.String())
		j.judgePersistence(one, of, leaf.Table, leaf.Persistence)
		j.judgeTriggers(one, of, leaf.Table, leaf.Triggers)
		j.judgeReferences(one, of, leaf.Table, leaf.References)
		j.judgeConstraints(one, of, leaf.Table, leaf.Constraints)
	}
}

// judgePersistence reports an UNLOGGED table or partition.
func (j *databaseJudge) judgePersistence(c chart, of, on outbox.Table, persistence string) {
	level, effect := Warning, "its dead letters are lost in a crash"
	switch of {
	case j.o.Table:
		level, effect = Problem, "its rows are not in the WAL, do not stream, and are lost in a crash"
	case j.o.Table.Published():
		effect = "its published messages are lost in a crash"
	}
	if persistence == "u" {
		c.add(level, "table",
			sql("ALTER TABLE %s SET LOGGED", on.Printed()).noted("rewrites the table and locks it meanwhile"),
			"table %s is UNLOGGED: %s", on, effect)
	}
}

// outOfTheWay returns the fix that renames an object with the name of a table.
func (j *databaseJudge) outOfTheWay(table outbox.Table, kind string) steps {
	other := quote(table.Name + "_" + strings.ToLower(strings.ReplaceAll(kind, " ", "_")))
	instead := j.setupCommand()
	if viewed, found := j.behind(table); found {
		instead = sql("ALTER TABLE %s RENAME TO %s", viewed.Printed(), quote(table.Name))
	}
	return lines(sql("ALTER %s %s RENAME TO %s", kind, table.Printed(), other), instead)
}

// behind returns the renamed table if a view took its name: the only table that the view reads, with all columns.
func (j *databaseJudge) behind(table outbox.Table) (outbox.Table, bool) {
	views := j.tables.Views[table.Name]
	wanted, err := migrations.Columns(j.o.Table, table)
	if err != nil || len(views) != 1 || views[0].Schema != table.Schema {
		return outbox.Table{}, false
	}
	lacks := func(want migrations.Column) bool { return !slices.Contains(views[0].Columns, want.Name) }
	return outbox.Table{Schema: views[0].Schema, Name: views[0].Name}, !slices.ContainsFunc(wanted, lacks)
}

// restore returns the fix for missing columns. A migration adds columns of a newer version, but not columns that
// somebody dropped or renamed.
func (j *databaseJudge) restore(table outbox.Table, missing []migrations.Column) (all steps) {
	if j.f.version.err == nil && len(j.f.version.value.Pending) > 0 {
		return j.upgradeCommand()
	}
	others := map[string]string{}
	for _, is := range j.tables.Tables[table.Name].Columns {
		others[is.Name] = is.Type
	}
	for _, fix := range migrations.Restored(j.o.Table, table, missing, others) {
		step := remark("%s", fix)
		if !strings.HasPrefix(fix, "--") {
			step = sql("%s", fix)
		}
		all = append(all, step...)
	}
	return all
}

func columnNames(columns []migrations.Column) string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// setupCommand creates what is missing, with the names of this relay.
func (j *databaseJudge) setupCommand() steps {
	text := "cdc-relay setup" + j.tableFlag()
	if j.o.Poll {
		text += " --mode poll"
	} else {
		text += j.slotFlags()
	}
	if j.o.KeepPublished > 0 {
		text += " --keep-published " + problem.Hours(j.o.KeepPublished)
	}
	return steps{{kind: setupStep, text: text, safe: true}}
}

// upgradeCommand brings the tables to the version of this cdc-relay.
func (j *databaseJudge) upgradeCommand() steps {
	return steps{{kind: upgradeStep, text: "cdc-relay setup --tables-only" + j.tableFlag(), safe: true}}
}

// slotFlags returns the flags for names that are not the defaults.
func (j *databaseJudge) slotFlags() (flags string) {
	publication, slot := j.o.names().OfWholeTable()
	if slot != "cdc_relay" {
		flags += " --slot " + shell(slot)
	}
	if publication != "cdc_relay" {
		flags += " --publication " + shell(publication)
	}
	if !j.o.Shard.Whole() {
		flags += " --shard " + j.o.Shard.String()
	}
	if j.o.FailoverSlot {
		flags += " --failover-slot"
	}
	return flags
}

// tableFlag returns the flag for a table that is not the default.
func (j *databaseJudge) tableFlag() string {
	if name := j.o.Table.String(); name != "public.outbox" {
		return " --table " + shell(name)
	}
	return ""
}

// judgeReports checks the table of relays, without which relays work unseen.
func (j *databaseJudge) judgeReports(c chart) {
	relays := migrations.RelayTable(j.o.Table)
	if _, there := j.tables.Tables[relays.Name]; !there && j.there {
		c.about(relays.String()).warn("table", j.setupCommand(),
			"table %s does not exist: other programs do not see what relays do", relays)
	}
}

// judgeMigrations checks the version and the owner of the tables.
func (j *databaseJudge) judgeMigrations(c chart) {
	state, versions := j.f.version.value, migrations.VersionTable(j.o.Table)
	hasTables := slices.ContainsFunc(schema.Needs(j.o.Table), func(need schema.Need) bool {
		_, there := j.tables.Tables[need.Table.Name]
		return there
	})
	switch err := j.f.version.err; {
	case errors.Is(err, migrations.ErrNewer):
		c.wrong("migrations", remark("# use a newer cdc-relay"), "%s", err)
	case errors.Is(err, migrations.ErrOwner):
		if !j.o.Operator {
			c.wrong("owner", hintFix(problem.Hint(err)), "%s", err)
		}
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege) && problem.Grant(err, j.grantee()) == "": // not of the catalog
		c.wrong("migrations", j.grant(grants.Version(j.o.Table)),
			"role %q may not read the version of the tables, from %s", j.role.Name, versions)
	case c.unknown("migrations", err):
	case state.Current == 0 && hasTables:
		create := sql("CREATE TABLE IF NOT EXISTS %s (version int4, ended_well uuid, older int8)", versions.Printed())
		c.wrong("migrations", lines(create,
			sql("INSERT INTO %s (version) VALUES (%d)",
				versions.Printed(), state.Latest).noted("if check reports no problem with their columns")),
			"the version of the tables is unknown: table %s is missing or empty", versions)
	case state.Current == 0: // reported already
	case len(state.Pending) > 0:
		c.wrong("migrations", j.upgradeCommand(),
			"the tables are at version %d, this cdc-relay needs %d", state.Current, state.Latest)
	default:
		c.ok("migrations", "version %d, up to date", state.Current)
	}
}
