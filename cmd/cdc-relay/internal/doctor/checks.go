package doctor

import (
	"context"
	_ "embed" // checksSQL
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

//go:embed checks.sql
var checksSQL string

// row is a finding that a statement of checks.sql makes, or why the statement failed.
type row struct {
	Area  Area
	Name  string
	Level Level
	Says  string
	Fix   []string
	err   error
}

// checks returns the statements of checks.sql whose objects exist, what precedes them, and their arguments.
func (j *databaseJudge) checks() (common string, all []row, args pgx.NamedArgs) {
	table, sequence := j.o.Table, j.tables.Sequence
	blocks := strings.Split(checksSQL, "\n\n-- ")
	for _, block := range blocks[1:] {
		line, text, _ := strings.Cut(block, "\n")
		if !j.there && strings.Contains(text, "%TABLE%") ||
			sequence == (outbox.Table{}) && strings.Contains(text, "@sequence") {
			continue
		}
		heading := strings.Fields(line) // area and names
		text = strings.NewReplacer("%TABLE%", table.SQL(), "%SEQUENCE%", sequence.SQL()).Replace(text)
		all = append(all, row{
			Area: Area(heading[0]), Name: heading[1],
			Says: "SELECT '" + heading[0] + "' AS area, found.* FROM (" + text + ") found(name, level, says, fix)",
		})
	}
	return blocks[0] + "\n", all, pgx.NamedArgs{
		"administrator": j.o.Administrator, "poll": j.o.Poll, "readonly": j.f.readOnly.value == "on",
		"exists": j.slot.Exists(), "relayed": j.slot.Relayed(table), "others": j.otherNames(), "limit": j.limit(),
		"table": table.SQL(), "printed": table.Printed(), "name": table.String(), "schema": outbox.SchemaVersion,
		"sequence": sequence.SQL(), "sequencename": sequence.String(),
	}
}

// askChecks makes all checks in one question. If that fails, each check gets its own: an error in one loses no other.
func (j *databaseJudge) askChecks(ctx context.Context, s *session) (found []row) {
	common, all, args := j.checks()
	ask := func(text string) answer[[]row] {
		return read(ctx, s, func(tx pgx.Tx) ([]row, error) {
			rows, _ := tx.Query(ctx, common+text, args) // CollectRows returns its error
			return pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		})
	}
	var texts []string
	for _, one := range all {
		texts = append(texts, one.Says)
	}
	together := ask(strings.Join(texts, "\nUNION ALL "))
	if together.err == nil {
		return together.value
	}
	for _, one := range all {
		alone := ask(one.Says)
		found = append(found, alone.value...)
		// Other checks report what is wrong with the tables.
		ofTables := pgcode.Is(alone.err, pgerrcode.InsufficientPrivilege, pgerrcode.UndefinedColumn) &&
			problem.Grant(alone.err, "") == ""
		if alone.err != nil && !ofTables {
			found = append(found, row{Area: one.Area, Name: one.Name, err: alone.err})
		}
	}
	return found
}

// judgeRows reports what the checks have found about the area of the chart.
func (j *databaseJudge) judgeRows(c chart) {
	for _, r := range j.f.rows {
		switch {
		case r.Area != c.area:
		case r.err != nil:
			c.unknown(r.Name, r.err)
		default:
			c.add(r.Level, r.Name, j.cure(r.Fix), "%s", r.Says)
		}
	}
}

// cure reads the lines of a fix of checks.sql.
func (j *databaseJudge) cure(fix []string) (all steps) {
	for _, line := range fix {
		verb, rest, _ := strings.Cut(line, " ")
		name, value, _ := strings.Cut(rest, " ")
		switch verb {
		case "set", "restart":
			all = lines(all, j.service.setting(name, value, verb == "restart"))
		case "logical":
			all = lines(all, j.service.logicalWAL())
		case "safe":
			all = lines(all, sql("%s", rest).safe())
		default:
			all = lines(all, hintFix(line))
		}
	}
	return all
}
