package doctor

import (
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// judgeTables checks that the tables exist and have the right version.
func (j *databaseJudge) judgeTables() []Finding {
	c := &chart{area: Tables}
	if j.f.tables.err != nil {
		c.unknown("table", j.f.tables.err)
		return c.findings
	}
	for _, need := range store.Needs(j.o.Table) {
		j.judgeTable(c, need)
	}
	j.judgeHistory(c)
	j.judgeIDs(c)
	j.judgeTimes(c)
	j.judgeAdopted(c)
	j.judgeVersion(c)
	if found := j.f.identity; found != nil {
		c.wrong("replica_identity", hintFix(found.Fix), "%s", found.What)
	}
	if n := j.f.textual.value; n > 0 {
		c.warn("payload", remark("-- give the client library an object, not text that is JSON already"),
			`of the newest 100 waiting rows, %s JSON text inside a JSON string, such as "{\"a\": 1}"`,
			counted(n, "payload is", "payloads are"))
	}
	return c.findings
}

// judgeAdopted checks that new rows of adopted tables still arrive.
func (j *databaseJudge) judgeAdopted(c *chart) {
	if j.f.adopted.err != nil {
		c.unknown("adopted", j.f.adopted.err)
	}
	for _, a := range j.f.adopted.value {
		name := a.Table.String()
		again := lines(command("%s --waiting CONDITION", a.Command).noted("which of its rows are still to be sent"),
			remark("# or: cdc-relay adopt --undo --from %s%s", shell(name), j.tableFlag()))
		switch {
		case !a.Exists:
			c.wrong("adopted", again,
				"table %s was adopted but no longer exists; rows of a table in its place are not published",
				name).about(name)
		case !a.Trigger:
			c.wrong("adopted", again,
				"table %s was adopted and has lost its trigger: its new rows are not published", name).about(name)
		case !a.Enabled:
			c.wrong("adopted", again,
				"table %s was adopted and its trigger is disabled: its new rows are not published", name).about(name)
		case len(a.LostKey) > 0:
			c.wrong("adopted", renamed(a, a.LostKey),
				"adopted table %s no longer has column %s of its primary key: every INSERT into it fails",
				name, strings.Join(a.LostKey, ", ")).about(name)
		case a.Obstacle != nil && len(a.Missing) == 0:
			c.wrong("adopted", fixOf(a.Obstacle), "adopt would reject an adopted table now: %s", a.Obstacle).about(name)
		case a.OtherKey:
			c.wrong("adopted", command("%s --waiting none", a.Command),
				"adopted table %s has another primary key now: its messages can be wrong", name).about(name)
		case len(a.Missing) > 0:
			c.wrong("adopted", renamed(a, a.Missing),
				"adopted table %s no longer has column %s: its new rows become dead letters",
				name, strings.Join(a.Missing, ", ")).about(name)
		default:
			c.ok("adopted", "new rows of %s are published", name).about(name)
		}
	}
}

// renamed returns how to give columns their names back. Their new names are not known.
func renamed(a adopt.Adopted, columns []string) fix {
	var all fix
	for _, column := range columns {
		all = append(all, sql("ALTER TABLE %s RENAME COLUMN NEW_NAME TO %s", a.Table.Printed(), quote(column))...)
	}
	return lines(all, remark("# or adopt it again, and change --map: %s --waiting none", a.Command))
}

func (j *databaseJudge) judgeTable(c *chart, need store.Need) {
	table, there := j.f.tables.value.Tables[need.Table.Name]
	name := need.Table.String()
	if kind, other := j.f.tables.value.Others[need.Table.Name]; other {
		c.wrong("table", j.outOfTheWay(need.Table, kind),
			"%s is %s, and has to be a table: nothing streams, and no row can be claimed",
			name, migrations.WithArticle(kind)).about(name)
		return
	}
	if !there {
		which, repair := "", j.setupCommand()
		if need.Table == j.o.Table { // perhaps the name is mistyped
			var meant string
			if which, meant = store.Others(need.Table, j.f.tables.value.Outboxes); meant != "" {
				repair = lines(remark("%s", meant), remark("# else: %s", j.setupCommand()[0].line()))
			}
		}
		c.wrong("table", repair, "table %s does not exist in database %q%s", name, j.server.Database, which).about(name)
		return
	}
	missing := j.judgeColumns(c, need.Table, table)
	switch {
	case len(missing) > 0:
		c.wrong("table", j.restore(need.Table, missing),
			"table %s has no column %s: no message can be published", name, columnNames(missing)).about(name)
	case table.Persistence == "u":
		j.judgePersistence(c, need.Table, need.Table, table.Persistence)
	case table.Childless:
		fix := sql("CREATE TABLE %s PARTITION OF %s DEFAULT",
			outbox.Table{Schema: need.Table.Schema, Name: need.Table.Name + "_default"}.Printed(), need.Table.Printed())
		c.wrong("table", fix, "table %s has no partition: every INSERT fails", name).about(name)
	case table.partitioned():
		c.ok("table", "%s, partitioned, owned by %q", name, table.Owner).about(name)
	default:
		c.ok("table", "%s, owned by %q", name, table.Owner).about(name)
	}
	if len(missing) == 0 {
		j.judgeIndexes(c, need.Table, table)
	}
	j.judgeTriggers(c, need.Table, need.Table, table.Triggers)
	j.judgeRules(c, need.Table, table.Rules)
	j.judgeReferences(c, need.Table, need.Table, table.References)
	j.judgeConstraints(c, need.Table, need.Table, table.Constraints)
	j.judgeLeaves(c, need.Table)
	if table.Secured {
		c.warn("row_security", lines(
			sql("CREATE POLICY outbox_insert ON %s FOR INSERT WITH CHECK (true)", need.Table.Printed()),
			sql("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", need.Table.Printed()).orElse()),
			"row-level security of %s has no policy for INSERT: "+
				"it rejects every row but those of the owner and of roles with BYPASSRLS", name).about(name)
	}
}

// outOfTheWay returns the fix that renames an object with the name of a table.
func (j *databaseJudge) outOfTheWay(table outbox.Table, kind string) fix {
	other := quote(table.Name + "_" + strings.ToLower(strings.ReplaceAll(kind, " ", "_")))
	instead := j.setupCommand()
	if viewed, found := j.behind(table); found {
		instead = sql("ALTER TABLE %s RENAME TO %s", viewed.Printed(), quote(table.Name))
	}
	return lines(sql("ALTER %s %s RENAME TO %s", kind, table.Printed(), other), instead)
}

// behind returns the renamed table if a view took its name: the only table that the view reads, with all columns.
func (j *databaseJudge) behind(table outbox.Table) (outbox.Table, bool) {
	views := j.f.tables.value.Views[table.Name]
	wanted, err := migrations.Columns(j.o.Table, table)
	if err != nil || len(views) != 1 || views[0].Schema != table.Schema {
		return outbox.Table{}, false
	}
	lacks := func(want migrations.Column) bool { return !slices.Contains(views[0].Columns, want.Name) }
	return outbox.Table{Schema: views[0].Schema, Name: views[0].Name}, !slices.ContainsFunc(wanted, lacks)
}

// restore returns the fix for missing columns. A migration adds columns of a newer version, but not columns that
// somebody dropped or renamed.
func (j *databaseJudge) restore(table outbox.Table, missing []migrations.Column) fix {
	if j.f.version.err == nil && len(j.f.version.value.Pending) > 0 {
		return j.upgradeCommand()
	}
	var all fix
	for _, column := range missing {
		add := sql("%s", column.Add(j.o.Table, table))
		all = append(all, add.noted("or, if it was renamed: RENAME COLUMN OLD_NAME TO %s", quote(column.Name))...)
	}
	return all
}

// setupCommand creates what is missing, with the names of this relay.
func (j *databaseJudge) setupCommand() fix {
	history := ""
	if j.o.KeepPublished > 0 {
		history = " --keep-published " + hours(j.o.KeepPublished)
	}
	flags := j.slotFlags()
	if j.o.Poll {
		flags = " --mode poll"
	}
	return fix{{kind: setupStep, text: "cdc-relay setup" + j.tableFlag() + flags + history, safe: true}}
}

// upgradeCommand brings the tables to the version of this cdc-relay.
func (j *databaseJudge) upgradeCommand() fix {
	return fix{{kind: upgradeStep, text: "cdc-relay setup --tables-only" + j.tableFlag(), safe: true}}
}

// slotFlags returns the flags for names that are not the defaults.
func (j *databaseJudge) slotFlags() string {
	flags := ""
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

func (j *databaseJudge) judgeVersion(c *chart) {
	state := j.f.version.value
	versions := migrations.VersionTable(j.o.Table)
	switch err := j.f.version.err; {
	case errors.Is(err, migrations.ErrNewer):
		c.wrong("migrations", remark("# use a newer cdc-relay"), "%s", err)
	case errors.Is(err, migrations.ErrOwner):
		if !j.o.Operator {
			c.wrong("owner", hintFix(problem.Hint(err)), "%s", err)
		}
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege) && problem.Grant(err, j.role()) == "": // not of the catalog
		c.wrong("migrations", sql("%s", grants.Version(j.o.Table).To(j.role())).safe(),
			"role %q may not read the version of the tables, from %s", j.f.role.value.Name, versions)
	case err != nil:
		c.unknown("migrations", err)
	case state.Current == 0 && j.hasTables():
		c.wrong("migrations", lines(sql("CREATE TABLE IF NOT EXISTS %s (version int4 NOT NULL)", versions.Printed()),
			sql("INSERT INTO %s (version) VALUES (%d)",
				versions.Printed(), state.Latest).noted("if check reports no problem with their columns")),
			"the version of the tables is unknown: table %s is missing or empty", versions)
	case state.Current == 0:
		c.wrong("migrations", j.setupCommand(), "the tables were never created")
	case len(state.Pending) > 0:
		c.wrong("migrations", j.upgradeCommand(),
			"the tables are at version %d, this cdc-relay needs %d", state.Current, state.Latest)
	default:
		c.ok("migrations", "version %d, up to date", state.Current)
	}
}

// hasTables: the outbox or its dead-letter table exists.
func (j *databaseJudge) hasTables() bool {
	return slices.ContainsFunc(store.Needs(j.o.Table), func(need store.Need) bool {
		_, there := j.f.tables.value.Tables[need.Table.Name]
		return there
	})
}

// role is the relay's role, as SQL writes it.
func (j *databaseJudge) role() string { return quote(j.f.role.value.Name) }

// judgeGrants checks the privileges of the relay's role and of the application's.
func (j *databaseJudge) judgeGrants() []Finding {
	c := &chart{area: Grants}
	t := j.f.tables.value
	role := j.f.role.value.Name
	if j.f.tables.err == nil && t.SchemaExists && !j.o.Operator {
		if !t.SchemaUsage {
			c.wrong("schema", j.grantUsage(j.role()),
				"role %q may not use schema %s", role, j.o.Table.Schema)
		}
		for _, need := range store.Needs(j.o.Table) {
			if table, there := t.Tables[need.Table.Name]; there {
				j.judgePrivileges(c, need, table)
			}
		}
		j.judgeHistoryGrants(c)
		if j.f.role.value.Superuser {
			c.ok("relay", "role %q is a superuser and may do everything; --relay-role NAME examines another role", role)
		}
		if t.Sequence != (outbox.Table{}) && !t.SequenceGranted {
			c.wrong("sequence", sql("%s", grants.Sequence(t.Sequence).To(j.role())).safe(),
				"role %q may not SELECT sequence %s", role, t.Sequence)
		} else if t.Sequence != (outbox.Table{}) {
			c.ok("sequence", "role %q may SELECT %s", role, t.Sequence)
		}
	}
	for _, app := range j.f.apps {
		j.judgeApp(c, app)
	}
	if _, there := t.Tables[j.o.Table.Name]; there {
		j.judgeWriters(c)
	}
	return c.findings
}

func (j *databaseJudge) judgePrivileges(c *chart, need store.Need, table tableFacts) {
	name, role := need.Table.String(), j.f.role.value.Name
	var denied []string
	for _, privilege := range need.Privileges {
		if !slices.Contains(table.Privileges, privilege) {
			denied = append(denied, privilege)
		}
	}
	switch all := strings.Join(denied, ", "); {
	case len(denied) > 0:
		c.wrong("relay", sql("GRANT %s ON %s TO %s", all, need.Table.Printed(), j.role()).safe(),
			"role %q may not %s on table %s", role, all, name).about(name)
	case table.Hidden:
		c.wrong("relay", lines(sql("ALTER ROLE %s BYPASSRLS", j.role()),
			sql("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", need.Table.Printed()).orElse()),
			"row-level security of table %s hides rows from role %q", name, role).about(name)
	default:
		c.ok("relay", "role %q may %s on %s", role, strings.Join(need.Privileges, ", "), name).about(name)
	}
}
