// Package decode turns pgoutput messages (protocol version 1, text or binary) into outbox messages. It takes bytes and
// returns values, without I/O or a clock.
//
// The formats are in the PostgreSQL manual, "Logical Replication Message Formats".
package decode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Kind is the meaning of a pgoutput message for the relay.
type Kind uint8

// The kinds. Ignored needs no action: inserts into other tables, relations, types, origins, updates, deletes,
// truncates.
const (
	Ignored Kind = iota
	Begin
	Insert
	Commit
)

// Event is one decoded message.
type Event struct {
	Kind Kind
	// XID is the inserting transaction (Begin, Insert).
	XID uint32
	// CommitLSN is the start of the transaction's commit record (Begin, Insert, Commit).
	CommitLSN pglogrepl.LSN
	// EndLSN is the end of the commit record: everything before it was received (Commit).
	EndLSN pglogrepl.LSN
	// Message is the row (Insert). It owns its memory.
	Message *outbox.Message
}

// MissingColumnError is returned if the streamed table lacks columns that the relay needs. No retry can help.
type MissingColumnError struct {
	Table   outbox.Table
	Columns []string
	// Unfit: the column exists, but its type cannot be a header.
	Unfit bool
}

func (e *MissingColumnError) Error() string {
	if e.Unfit {
		return fmt.Sprintf("the stream of table %s has column %s in a type that --header-columns cannot send",
			e.Table, strings.Join(e.Columns, ", "))
	}
	return fmt.Sprintf("the stream of table %s has no column %s", e.Table, strings.Join(e.Columns, ", "))
}

// Hint says how to fix it.
func (e *MissingColumnError) Hint() string {
	if e.Unfit {
		return "# leave it out of --header-columns, or give it one of the types " + outbox.HeaderTypes
	}
	return problem.Command(e.Table, "check") + "  # prints the ALTER TABLE, or the column list that hides it"
}

// RowError is returned for one row that could not be decoded. The row is still in the table.
type RowError struct {
	Ref    outbox.Ref // as decoded before the faulty column
	Column string
	Err    error
}

func (e *RowError) Error() string {
	return fmt.Sprintf("row %d: column %s: %v", e.Ref.ID, e.Column, e.Err)
}

func (e *RowError) Unwrap() error { return e.Err }

// Decoder remembers what the server sends only once: the columns of each relation and the current transaction. Use one
// for each replication connection, from one goroutine.
type Decoder struct {
	table    outbox.Table
	needed   []column
	headers  []string // columns that are sent as headers
	strings  interner
	layouts  map[uint32][]*column // by relation OID; nil: another table
	xid      uint32
	commitAt pglogrepl.LSN
	// committed is the commit time of the transaction, in microseconds after postgresEpoch.
	committed int64
}

// postgresEpoch is the server's epoch, 2000-01-01, in microseconds of Unix time.
const postgresEpoch = 946_684_800_000_000

// NewDecoder returns a decoder for the rows of one table. It also reads the columns in headers.
func NewDecoder(table outbox.Table, headers ...string) *Decoder {
	return &Decoder{table: table, needed: columns(), headers: headers, layouts: make(map[uint32][]*column)}
}

// Decode decodes one pgoutput message. It does not keep the bytes. After a *RowError, which is about one row, the
// stream can continue; any other error ends it.
func (d *Decoder) Decode(data []byte) (Event, error) {
	r := reader{rest: data}
	switch kind := r.uint8("message type"); kind {
	case 'B':
		return d.begin(&r)
	case 'C':
		return d.commit(&r)
	case 'R':
		return Event{}, d.relation(&r)
	case 'I':
		return d.insert(&r)
	case 'U', 'D', 'T', 'O', 'Y', 'M':
		return Event{}, nil
	default:
		if r.err != nil {
			return Event{}, r.err
		}
		return Event{}, fmt.Errorf("unknown pgoutput message type %q", kind)
	}
}

func (d *Decoder) begin(r *reader) (Event, error) {
	commitAt := pglogrepl.LSN(r.uint64("begin: final LSN"))
	committed := r.uint64("begin: commit time")
	xid := r.uint32("begin: xid")
	if r.err != nil {
		return Event{}, r.err
	}
	d.xid, d.commitAt, d.committed = xid, commitAt, int64(committed)
	return Event{Kind: Begin, XID: xid, CommitLSN: commitAt}, nil
}

// CommittedAt is the commit time of the current transaction, on the server's clock.
func (d *Decoder) CommittedAt() time.Time { return time.UnixMicro(postgresEpoch + d.committed) }

func (d *Decoder) commit(r *reader) (Event, error) {
	r.bytes(1, "commit: flags")
	commitAt := pglogrepl.LSN(r.uint64("commit: LSN"))
	end := pglogrepl.LSN(r.uint64("commit: end LSN"))
	r.bytes(8, "commit: time")
	if r.err != nil {
		return Event{}, r.err
	}
	return Event{Kind: Commit, XID: d.xid, CommitLSN: commitAt, EndLSN: end}, nil
}

// relation reads the columns by name. The server sends them again after each change of the table.
func (d *Decoder) relation(r *reader) error {
	oid := r.uint32("relation: OID")
	schema := r.cstring("relation: schema")
	name := r.cstring("relation: name")
	r.bytes(1, "relation: replica identity")
	count := int(r.uint16("relation: column count"))
	if r.err != nil {
		return r.err
	}
	if schema == "" {
		schema = "pg_catalog" // it is sent as empty, according to the manual
	}
	ours := schema == d.table.Schema && name == d.table.Name
	layout := make([]*column, 0, min(count, 1600)) // the maximum for a table
	for range count {
		r.bytes(1, "relation: column flags")
		name := r.cstring("relation: column name")
		kind := r.uint32("relation: column type")
		r.bytes(4, "relation: type modifier")
		if r.err != nil {
			return r.err
		}
		column := d.column(name)
		if column == nil && ours && slices.Contains(d.headers, name) {
			if column = headerColumn(name, kind); column == nil {
				return &MissingColumnError{Table: d.table, Columns: []string{name}, Unfit: true}
			}
		}
		layout = append(layout, column)
	}
	if !ours {
		d.layouts[oid] = nil
		return nil
	}
	if missing := d.missing(layout); missing != nil {
		return &MissingColumnError{Table: d.table, Columns: missing}
	}
	d.layouts[oid] = layout
	return nil
}

func (d *Decoder) column(name string) *column {
	for i := range d.needed {
		if d.needed[i].name == name {
			return &d.needed[i]
		}
	}
	return nil
}

func (d *Decoder) missing(layout []*column) []string {
	var names []string
	for i := range d.needed {
		if !slices.Contains(layout, &d.needed[i]) {
			names = append(names, d.needed[i].name)
		}
	}
	for _, name := range d.headers {
		if !slices.ContainsFunc(layout, func(c *column) bool { return c != nil && c.name == name }) {
			names = append(names, name)
		}
	}
	return names
}

func (d *Decoder) insert(r *reader) (Event, error) {
	oid := r.uint32("insert: relation OID")
	layout, known := d.layouts[oid]
	if r.err != nil {
		return Event{}, r.err
	}
	if !known {
		return Event{}, fmt.Errorf("insert: relation %d was not announced", oid)
	}
	if layout == nil {
		return Event{Kind: Ignored}, nil
	}
	if kind := r.uint8("insert: tuple kind"); r.err == nil && kind != 'N' {
		return Event{}, fmt.Errorf("insert: tuple kind %q: want N", kind)
	}
	if count := int(r.uint16("insert: column count")); r.err == nil && count != len(layout) {
		return Event{}, fmt.Errorf("insert: %d columns, the relation has %d", count, len(layout))
	}
	message, rowErr := d.row(r, layout)
	if r.err != nil {
		return Event{}, r.err
	}
	if rowErr != nil {
		return Event{}, rowErr
	}
	return Event{Kind: Insert, XID: d.xid, CommitLSN: d.commitAt, Message: message}, nil
}

// row reads all columns, even after a faulty one, so that the error can name the row.
func (d *Decoder) row(r *reader, layout []*column) (*outbox.Message, error) {
	m := &outbox.Message{XID: d.xid}
	var wrong *RowError
	for _, column := range layout {
		v, null, err := tupleColumn(r)
		if r.err != nil {
			return nil, r.err
		}
		if column == nil {
			continue
		}
		switch {
		case err != nil:
		case !null:
			err = column.set(m, v, &d.strings)
		case !column.nullable:
			err = errors.New("is null")
		}
		if err != nil && wrong == nil {
			wrong = &RowError{Column: column.name, Err: err}
		}
	}
	if wrong != nil {
		wrong.Ref = m.Ref()
		return nil, wrong
	}
	return m, nil
}

func tupleColumn(r *reader) (v value, null bool, err error) {
	switch kind := r.uint8("column kind"); kind {
	case 'n':
		return value{}, true, nil
	case 't', 'b':
		return value{data: r.bytes(int(r.uint32("column length")), "column value"), binary: kind == 'b'}, false, nil
	case 'u':
		// Only an update omits a TOASTed value (protocol manual).
		return value{}, false, errors.New("its value was not sent")
	default:
		if r.err == nil {
			r.err = fmt.Errorf("column kind %q: want n, t, b or u", kind)
		}
		return value{}, false, r.err
	}
}
