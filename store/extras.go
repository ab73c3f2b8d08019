package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// SendHeaders makes claims read these application columns, which are sent as headers. Call it before the first claim.
func (s *Store) SendHeaders(columns []string) {
	s.headers = columns
	s.lock = strings.ReplaceAll(s.sql.lock, "{header_columns}", headerColumns(columns))
}

// headerColumns follow those that a statement reads otherwise.
func headerColumns(names []string) string {
	var list strings.Builder
	for _, name := range names {
		list.WriteString(", r." + outbox.QuoteIdentifier(name))
	}
	return list.String()
}

// headerScan reads headerColumns.
type headerScan struct {
	names  []string
	values []any
	places []any
}

func newHeaderScan(names []string) *headerScan {
	h := &headerScan{names: names, values: make([]any, len(names))}
	for i := range h.values {
		h.places = append(h.places, &h.values[i])
	}
	return h
}

// add gives the values of the row that was read last to its message.
func (h *headerScan) add(m *outbox.Message) {
	for i, value := range h.values {
		if value != nil {
			m.Extra = append(m.Extra, outbox.Header{Name: h.names[i], Value: headerValue(value)})
		}
	}
}

// headerValue converts a value of pgx for a header.
func headerValue(value any) any {
	switch v := value.(type) {
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case [16]byte:
		return outbox.UUID(v).String()
	case int64, bool, string:
		return v
	}
	return fmt.Sprint(value) // checkHeaders rejects other types
}

// checkHeaders returns a problem if a column cannot be sent as a header.
func (s *Store) checkHeaders(ctx context.Context) error {
	if len(s.headers) == 0 {
		return nil
	}
	rows, err := s.pool.Query(ctx, `
SELECT c.name, a.attname IS NOT NULL, coalesce(format_type(a.atttypid, NULL), ''), coalesce(a.attgenerated <> '', false)
FROM unnest($2::text[]) c(name) LEFT JOIN pg_catalog.pg_attribute a
  ON a.attrelid = $1::regclass AND a.attname = c.name AND NOT a.attisdropped AND a.attnum > 0`, s.table.SQL(), s.headers)
	if err != nil {
		return fmt.Errorf("check the header columns of %s: %w", s.table, err)
	}
	var name, kind string
	var there, generated bool
	var found error
	_, err = pgx.ForEachRow(rows, []any{&name, &there, &kind, &generated}, func() error {
		switch {
		case found != nil:
		case !there:
			found = problem.New(fmt.Sprintf("leave it out of --header-columns, or: ALTER TABLE %s ADD COLUMN %s text", s.table.SQL(), outbox.QuoteIdentifier(name)),
				"table %s has no column %s, which --header-columns names", s.table, name)
		case generated:
			found = problem.New("set it in the INSERT, or leave it out of --header-columns",
				"column %s of table %s is generated: the stream does not bring it, and --header-columns names it", name, s.table)
		case !strings.Contains(", "+outbox.HeaderTypes+",", ", "+kind+","):
			found = problem.New("give it one of these types, or leave it out of --header-columns: "+outbox.HeaderTypes,
				"column %s of table %s is %s, which --header-columns cannot send", name, s.table, kind)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("check the header columns of %s: %w", s.table, err)
	}
	return found
}

// extras are application columns that exist in both tables with the same name and type. They move to the dead letters
// and back.
type extras struct {
	mu    sync.Mutex
	names []string // quoted for SQL
	at    time.Time
}

// extrasFor is how long the list stays valid: a column may be added at any time.
const extrasFor = 10 * time.Second

const extrasSQL = `
SELECT coalesce(array_agg(quote_ident(d.attname) ORDER BY d.attnum), '{}')
FROM pg_catalog.pg_attribute o JOIN pg_catalog.pg_attribute d ON d.attrelid = $2::regclass AND d.attname = o.attname
  AND d.atttypid = o.atttypid AND d.atttypmod = o.atttypmod
WHERE o.attrelid = $1::regclass AND o.attnum > 0 AND NOT o.attisdropped AND NOT d.attisdropped
  AND o.attgenerated = '' AND d.attgenerated = '' AND o.attidentity = '' AND d.attidentity = '' AND o.attname <> ALL ($3)
  AND has_column_privilege(o.attrelid, o.attnum, 'SELECT') AND has_column_privilege(d.attrelid, d.attnum, 'INSERT')`

// read updates the list, unless it is still valid. On an error, the old list stays.
func (e *extras) read(ctx context.Context, db rower, table outbox.Table) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.at.IsZero() && time.Since(e.at) < extrasFor {
		return
	}
	var names, known []string
	for _, need := range Needs(table) {
		known = append(known, need.Columns...)
	}
	if err := db.QueryRow(ctx, extrasSQL, table.SQL(), table.DeadLetter().SQL(), known).Scan(&names); err == nil {
		e.names, e.at = names, time.Now()
	}
}

func (e *extras) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = time.Time{}
}

// fill inserts the columns into a statement, under aliases: an application column may have the same name as a computed
// column.
func (e *extras) fill(sql string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var columns, names, values strings.Builder
	for i, name := range e.names {
		fmt.Fprintf(&columns, ", r.%s AS extra_%d_", name, i)
		fmt.Fprintf(&names, ", %s", name)
		fmt.Fprintf(&values, ", extra_%d_", i)
	}
	return strings.NewReplacer("{extra_columns}", columns.String(), "{extra_names}", names.String(), "{extra_values}", values.String()).Replace(sql)
}
