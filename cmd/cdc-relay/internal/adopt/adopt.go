// Package adopt connects another outbox table to ours without a change of the application. A deferred trigger copies
// each new row to the outbox at COMMIT and deletes it. Rows that waited before are moved once. With View, a view
// replaces the table, so that nothing is stored twice.
package adopt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Request describes one table to adopt.
type Request struct {
	Outbox outbox.Table
	// Owner is a role that may own the outbox (migrations.CheckOwners).
	Owner string
	// Layout is one of Layouts, or "" if Set says everything.
	Layout string
	From   outbox.Table
	// Set are expressions in SQL on the table's columns, such as "routing_key=topic". They override the layout.
	Set  []string
	View bool
	// Waiting selects the rows to move: "all", "none" or an SQL condition; "": the layout's condition.
	Waiting string
	// Only is an SQL condition for the rows that are messages, of those that wait and of new ones; "": all are.
	Only string
}

// Command returns the adopt command for this request.
func (r Request) Command() string {
	words := []string{"cdc-relay adopt"}
	if r.Layout != "" {
		words = append(words, shell(r.Layout))
	}
	words = append(words, "--from "+shell(r.From.String()))
	for _, text := range r.Set {
		words = append(words, "--set "+shell(text))
	}
	if r.Only != "" {
		words = append(words, "--only "+shell(r.Only))
	}
	if r.View {
		words = append(words, "--view")
	}
	if r.Outbox != (outbox.Table{Schema: "public", Name: "outbox"}) {
		words = append(words, "--table "+shell(r.Outbox.String()))
	}
	return strings.Join(words, " ")
}

// with returns the command for the same request with or without --view.
func (r Request) with(view bool) string {
	r.View = view
	return r.Command()
}

// note is the content of the function's COMMENT, for check and --undo. Every dump contains it.
type note struct {
	Outbox  string   `json:"outbox"`
	Schema  string   `json:"schema"`
	Table   string   `json:"table"`
	View    bool     `json:"view"`
	Columns []string `json:"columns"`
	Key     []string `json:"key"`
	Layout  string   `json:"layout"`
	Set     []string `json:"set"`
	Only    string   `json:"only"`
}

// note describes the function with this text.
func (p *plan) note(function string) note {
	r, read := p.request, []string(nil)
	for _, c := range p.source.Columns {
		if strings.Contains(function, field(c.Name)) || uses(r.only(), c.Name) {
			read = append(read, c.Name)
		}
	}
	return note{r.Outbox.SQL(), r.From.Schema, r.From.Name, r.View, read, p.source.key(), r.Layout, r.Set, r.Only}
}

// functionOf names the function that copies the rows of a table. The hash tells billing.events from billing_events.
func functionOf(into, from outbox.Table) outbox.Table {
	name := into.Name + "_from_" + from.Name
	if from.Schema != into.Schema {
		name = into.Name + "_from_" + from.Schema + "_" + from.Name + "_" + hash(from.SQL())
	}
	return outbox.Table{Schema: into.Schema, Name: shortened(name)}
}

// shortened replaces the end of a name by a hash if the name is too long for Postgres.
func shortened(name string) string {
	const longest = 63
	if len(name) <= longest {
		return name
	}
	end := longest - 9
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end] + "_" + hash(name)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// searchPath is that of all statements: nobody else's function or operator runs in place of one of Postgres.
const searchPath = "search_path = pg_catalog, pg_temp"

// newPlan reads the catalog and rejects a request that cannot be fulfilled. It uses the search_path of the statements:
// Postgres then writes defaults with the schemas that they need.
func newPlan(ctx context.Context, conn *pgx.Conn, r Request) (p *plan, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, "SET LOCAL "+searchPath); err != nil {
			return fmt.Errorf("set search_path: %w", err)
		}
		p, err = readPlan(ctx, tx, r)
		return err
	})
	return p, err
}

func readPlan(ctx context.Context, tx pgx.Tx, r Request) (*plan, error) {
	s, err := readSource(ctx, tx, r.From, r.Outbox)
	if err != nil {
		return nil, err
	}
	if err := s.check(r); err != nil {
		return nil, err
	}
	if err := migrations.CheckSource(ctx, tx, r.Outbox, r.From, r.Owner); err != nil {
		return nil, err
	}
	if s.HiddenFrom != "" {
		return nil, s.hides(s.HiddenFrom)
	}
	p := &plan{request: r, source: s, function: functionOf(r.Outbox, r.From)}
	if s.Trigger != "" && s.Trigger != p.function.SQL() {
		return nil, problem.New("cdc-relay adopt --undo --from "+shell(r.From.String())+" --table OUTBOX",
			"table %s was adopted before, by function %s", r.From, s.Trigger)
	}
	if s.Trigger != "" && r.View {
		return nil, problem.New("cdc-relay adopt --undo --from "+shell(r.From.String()),
			"table %s was adopted without --view", r.From)
	}
	for _, l := range layoutOf(r.Layout) {
		if column, is := strings.CutPrefix(l.name, "older."); is && !s.lacks(column) {
			command := Request{Outbox: r.Outbox, From: r.From}.Command()
			return nil, problem.New(command+" "+strings.Join(strings.Fields(l.text), " "),
				"table %s has a column %s: it is of an older version of %s", r.From, column, r.Layout)
		}
	}
	if p.conversion, err = s.convert(ctx, tx, r.Layout, r.Set); err != nil {
		return nil, err
	}
	p.waiting, err = p.condition(ctx, tx)
	return p, err
}

// condition returns the SQL condition for the rows to move.
func (p *plan) condition(ctx context.Context, db database) (string, error) {
	condition := p.request.Waiting
	switch condition {
	case "":
		if condition = layoutOf(p.request.Layout).get("waiting"); p.source.accepts(ctx, db, condition) != nil {
			condition = ""
		}
	case "all":
		condition = "true"
	case "none":
		condition = "false"
	}
	if condition == "" {
		var exist bool
		if err := db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+p.source.table.SQL()+")").Scan(&exist); err != nil {
			return "", fmt.Errorf("look for rows of %s: %w", p.source.table, err)
		}
		if exist {
			return "", problem.New(`--waiting all, --waiting none, or a condition as --waiting "sent_at IS NULL"`,
				"table %s has rows, and nothing says which of them are still to be sent", p.source.table)
		}
		return "true", nil // rows that arrive during the adoption
	}
	for _, given := range [][2]string{{"--waiting", condition}, {"--only", cmp.Or(p.request.Only, "true")}} {
		if err := p.source.accepts(ctx, db, given[1]); err != nil {
			return "", &problem.Problem{
				What: given[0] + " " + given[1],
				Fix: "# write a condition on the columns of " + p.source.table.String() + ": " + p.source.names() +
					"; write types and functions with their schema",
				Err: err,
			}
		}
	}
	if messages := p.request.only(); messages != "" && condition != "false" {
		condition = "(" + ended(condition) + ") AND " + messages
	}
	return condition, nil
}

// SQL returns what Adopt runs, as a script for psql. It reads the catalog.
func SQL(ctx context.Context, conn *pgx.Conn, r Request) (string, error) {
	p, err := newPlan(ctx, conn, r)
	if err != nil {
		return "", err
	}
	s, err := p.statements()
	if err != nil {
		return "", err
	}
	again := " Safe to run again."
	if r.View {
		again = ""
	}
	script := "-- " + problem.OneLine(r.Command()) + "\n" +
		"-- For psql, as the owner of both tables or a superuser." + again + "\n" +
		"\\set ON_ERROR_STOP on\nSET " + searchPath + ";\n\n"
	if p.waiting != "false" {
		script += "-- Waiting rows, 1000 in a transaction.\n" + s.move + "SHOW cdc_relay.moved;\n\n"
	}
	script += "-- The remaining rows, and from now on every new row. " +
		"INSERTs into the table wait for this transaction.\n" +
		"BEGIN;\n" + strings.Join(s.final, "\n") + "\nCOMMIT;\n"
	return script, nil
}

// Result is the outcome of Adopt.
type Result struct {
	// Moved counts the waiting rows that were moved.
	Moved int64
	// Attached is false if the table was adopted before.
	Attached bool
}

// passes limits how often new rows are moved before the table is locked.
const passes = 5

// Adopt moves waiting rows and then, in one transaction, creates the function, moves the last few rows and attaches the
// table. It can be run again after an interruption: each row is in exactly one table. Only that transaction locks the
// table, and the lock keeps the order of the last rows.
func Adopt(ctx context.Context, conn *pgx.Conn, r Request) (result Result, err error) {
	p, err := newPlan(ctx, conn, r)
	if err != nil {
		return result, err
	}
	s, err := p.statements()
	if err != nil {
		return result, err
	}
	if _, err := conn.Exec(ctx, "SET "+searchPath+"; SET lock_timeout = '10s'"); err != nil {
		return result, fmt.Errorf("adopt %s: %w", r.From, err)
	}
	result.Attached = p.source.Trigger == ""
	for range passes {
		if p.waiting == "false" {
			break
		}
		moved, err := run(ctx, conn, s.move)
		result.Moved += moved
		if err != nil {
			return result, fmt.Errorf("move rows of %s: %w", r.From, migrations.Blocked(ctx, conn, err, r.From))
		}
		if moved < 1000 {
			break
		}
	}
	moved, err := locking(ctx, conn, r.From, s.final)
	result.Moved += moved
	if err != nil {
		return result, fmt.Errorf("attach %s: %w", r.From, err)
	}
	return result, nil
}

// run runs statements and returns how many rows they moved.
func run(ctx context.Context, conn *pgx.Conn, statements ...string) (moved int64, err error) {
	if _, err := conn.Exec(ctx, "SET cdc_relay.moved = '0'"); err != nil {
		return 0, err
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return 0, err
		}
	}
	var text string
	if err := conn.QueryRow(ctx, "SELECT current_setting('cdc_relay.moved')").Scan(&text); err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// attempts is how often locking tries. Between attempts, INSERTs of the application continue.
const attempts = 5

// locking runs statements in a transaction that locks the table. It tries again if it does not get the lock.
func locking(ctx context.Context, conn *pgx.Conn, table outbox.Table, statements []string) (moved int64, err error) {
	for range attempts {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			moved, err = run(ctx, tx.Conn(), statements...)
			return err
		})
		if !pgcode.Is(err, pgerrcode.LockNotAvailable) {
			break
		}
	}
	if err != nil {
		return 0, migrations.Blocked(ctx, conn, err, table)
	}
	return moved, nil
}
