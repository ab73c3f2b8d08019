package doctor

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func publicationSQL() string {
	return `
SELECT jsonb_build_object('exists', true, 'insert', p.pubinsert, 'update', p.pubupdate, 'delete', p.pubdelete,
  'truncate', p.pubtruncate, 'ViaRoot', p.pubviaroot, 'AllTables', p.puballtables,
  'HasTable', t.tablename IS NOT NULL OR r.prrelid IS NOT NULL,
  'NoTable', c.oid IS NULL, 'ColumnList', r.prattrs IS NOT NULL,
  'filter', t.rowfilter, 'columns', array_to_string(t.attnames, ', '),
  'others', (SELECT count(*) FROM (SELECT FROM pg_publication_tables o WHERE o.pubname = p.pubname
             AND (o.schemaname, o.tablename) <> ($2, $3) LIMIT 1000) few),
  'outboxes', (` + provision.OtherOutboxesSQL("p.pubname", "$2", "$3") + `))
FROM pg_publication p
LEFT JOIN pg_class c ON c.relname = $3 AND c.relkind IN ('r', 'p')
  AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2)
LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE p.pubname = $1`
}

type publicationFacts struct {
	Exists                           bool
	Insert, Update, Delete, Truncate bool
	ViaRoot, AllTables, HasTable     bool
	NoTable                          bool   // the outbox does not exist
	Filter                           string // a row filter's expression
	ColumnList                       bool
	Columns                          string
	Others                           int            // other tables in it, counted up to 1000
	Outboxes                         []outbox.Table // up to five other outboxes in it
}

// judgePublication checks that it publishes every row of the table, and nothing else.
func (j *databaseJudge) judgePublication(c chart) {
	if c.unknown("publication", j.f.publication.err) {
		return
	}
	p := j.f.publication.value
	state := provision.Publication{
		Exists: p.Exists, Insert: p.Insert, ViaRoot: p.ViaRoot, HasTable: p.HasTable,
		RowFilter: p.Filter, ColumnList: p.ColumnList, Outboxes: p.Outboxes, NoTable: p.NoTable,
	}
	faults := state.Faults(j.o.names())
	for _, fault := range faults {
		j.judgePublicationFault(c, fault)
	}
	if len(faults) == 0 {
		c.ok("publication", "%s publishes the inserts of %s", j.o.Publication, j.o.Table)
	}
	if p.Exists {
		j.judgePublicationExtras(c)
	}
}

func (j *databaseJudge) judgePublicationFault(c chart, fault provision.PublicationFault) {
	p := j.f.publication.value
	says := fmt.Sprintf("publication %s: %s", j.o.Publication, fault.Says)
	limited := fault.Kind == provision.PublicationWithRowFilter || fault.Kind == provision.PublicationWithColumnList
	repair := sql("%s", fault.Fix)
	if limited && p.Others > 0 {
		repair = nil
		for _, statement := range provision.ReplaceTableSQL(j.o.names()) {
			repair = lines(repair, sql("%s", statement))
		}
	}
	name, effect := "publication", "nothing streams"
	switch fault.Kind {
	case provision.PublicationMissing:
		if j.absent {
			return
		}
		create := j.setupCommand().noted("as the owner of the table")
		if j.there {
			create = lines(repair.safe(), create.orElse())
		}
		says, repair = fmt.Sprintf("publication %s does not exist", j.o.Publication), create
	case provision.PublicationByPartition:
		name, effect = "partition_root", "the relay looks for those of "+j.o.Table.String()
		if !j.there || !j.table.partitioned() {
			c.warn(name, repair, "%s, once it has partitions", says)
			return
		}
	case provision.PublicationWithRowFilter:
		name, effect = "row_filter", p.Filter+": rows that it hides do not stream"
		if p.Filter == "" {
			effect = "rows of other shards stream, and are published twice"
		}
	case provision.PublicationWithColumnList:
		name, effect = "column_list", p.Columns+": the relay needs all columns"
	case provision.PublicationOfAnotherOutbox:
		repair = j.ownNames()
		if p.NoTable {
			repair = hintFix(fault.Fix)
		}
	case provision.PublicationWithoutTable:
		if !j.there {
			return
		}
		repair = repair.safe()
	}
	c.wrong(name, repair, "%s: %s", says, effect)
}

// judgePublicationExtras reports what else it publishes. Others may rely on it.
func (j *databaseJudge) judgePublicationExtras(c chart) {
	p, name := j.f.publication.value, j.o.Publication
	const useless = "the server decodes and sends rows that the relay discards"
	more := ""
	for _, one := range []struct {
		is   bool
		name string
	}{{p.Delete, ", deletes"}, {p.Truncate, ", truncates"}, {p.Update, ", updates"}} {
		if one.is {
			more += one.name
		}
	}
	own := remark("-- if others rely on it, give the relay its own: " +
		"cdc-relay setup --publication NAME, and --publication NAME for run")
	if more != "" {
		c.warn("insert_only", lines(sql("ALTER PUBLICATION %s SET (publish = 'insert')", quote(name)), own),
			"publication %s also publishes %s: every delete of the relay is decoded again, "+
				"and applications can no longer delete from tables without a primary key", name, more[2:])
	} else {
		c.ok("insert_only", "it publishes inserts only")
	}
	switch {
	case p.AllTables:
		c.warn("other_tables",
			lines(sql("DROP PUBLICATION %s", quote(name)).noted("others may rely on it"), j.setupCommand()),
			"publication %s is FOR ALL TABLES: %s", name, useless)
	case len(p.Outboxes) > 0 && p.HasTable:
		c.warn("other_tables", j.ownNames(), "publication %s publishes other outboxes as well: %s", name, useless)
	case p.Others > 0 && len(p.Outboxes) == 0:
		c.warn("other_tables", lines(sql("%s", provision.SetTableSQL(j.o.names())), own),
			"publication %s has %d other tables: %s", name, p.Others, useless)
	}
}

// ownNames gives the table its own slot and publication. A change of the publication could stop another relay.
func (j *databaseJudge) ownNames() steps {
	return command("%s", j.o.names().OwnSetup()).noted("and run with the same names: each outbox has its own")
}
