package doctor

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
)

// judgeAdopted checks that new rows of adopted tables still arrive.
func (j *databaseJudge) judgeAdopted(c chart) {
	c.unknown("adopted", j.f.adopted.err)
	for _, a := range j.f.adopted.value {
		j.judgeAdoptedTable(c.about(a.Table.String()), a)
	}
}

func (j *databaseJudge) judgeAdoptedTable(c chart, a adopt.Adopted) {
	name := a.Table.String()
	again := lines(command("%s --waiting CONDITION", a.Command).noted("which of its rows are still to be sent"),
		remark("# or: cdc-relay adopt --undo --from %s%s", shell(name), j.tableFlag()))
	switch {
	case !a.Exists:
		c.wrong("adopted", again,
			"table %s was adopted but no longer exists; rows of a table in its place are not published", name)
	case !a.Trigger:
		c.wrong("adopted", again, "table %s was adopted and has lost its trigger: its new rows are not published", name)
	case !a.Enabled:
		c.wrong("adopted", again,
			"table %s was adopted and its trigger is disabled: its new rows are not published", name)
	case len(a.LostKey) > 0:
		c.wrong("adopted", renamed(a, a.LostKey),
			"adopted table %s no longer has column %s of its primary key: every INSERT into it fails",
			name, strings.Join(a.LostKey, ", "))
	case a.Obstacle != nil && len(a.Missing) == 0:
		c.wrong("adopted", fixOf(a.Obstacle), "adopt would reject an adopted table now: %s", a.Obstacle)
	case a.OtherKey:
		c.wrong("adopted", command("%s --waiting none", a.Command),
			"adopted table %s has another primary key now: its messages can be wrong", name)
	case len(a.Missing) > 0:
		c.wrong("adopted", renamed(a, a.Missing),
			"adopted table %s no longer has column %s: its new rows become dead letters, or stay, if --only reads it",
			name, strings.Join(a.Missing, ", "))
	default:
		c.ok("adopted", "new rows of %s are published", name)
	}
}

// renamed returns how to give columns their names back. Their new names are not known.
func renamed(a adopt.Adopted, columns []string) (all steps) {
	for _, column := range columns {
		all = append(all, sql("ALTER TABLE %s RENAME COLUMN NEW_NAME TO %s", a.Table.Printed(), quote(column))...)
	}
	return lines(all, remark("# or adopt it again, and change --set: %s --waiting none", a.Command))
}
