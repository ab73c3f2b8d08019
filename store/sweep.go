package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Page is what one sweep query read.
type Page struct {
	// Messages are in id order.
	Messages []*outbox.Message
	// Snapshot could see all that Messages could have held.
	Snapshot Snapshot
	// Position is the WAL position after the query: every row that it saw had
	// committed before.
	Position uint64
	// Holder is the server process that held the slot of Leftovers or RowsOfKeys after
	// the query, 0 for none: no rows are taken on the word of one that was replaced.
	Holder uint32
}

const (
	// MostRows bounds Limit.Rows of a claim.
	MostRows = 10_000
	// LongestRun bounds Limit.Run.
	LongestRun = 64
)

// Limit bounds what one query reads.
type Limit struct {
	Rows  int
	Bytes int // payloads beyond it are left for the next query; one row is always read
	// Run is how many rows of one ordering key a claim takes at most; 0 is 1.
	Run int
}

// Leftovers reads rows without an ordering key that nobody has claimed, of the ids
// after after up to upTo, without claiming them: for the relay that holds the slot alone. An
// empty page says that there is none. Rows beyond limit.Bytes were sent by the server and
// dropped on receipt: to size each row there would cost more than it is worth for all
// but great ones. Who reads pages of those asks for fewer rows.
func (s *Store) Leftovers(ctx context.Context, slot string, after, upTo int64, limit Limit) (Page, error) {
	var page Page
	bytes, scanner := 0, newScanner()
	err := s.inPage(ctx, &page, slot, s.sql.leftover, []any{after, limit.Rows, upTo}, func(rows pgx.Rows) error {
		if bytes >= limit.Bytes && len(page.Messages) > 0 {
			return nil
		}
		m, err := scanner.scan(rows)
		if err != nil {
			return err
		}
		bytes += m.Size()
		page.Messages = append(page.Messages, m)
		return nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("sweep leftovers of %s: %w", s.table, err)
	}
	return page, nil
}

// inPage runs a query between the snapshot and the position that Page promises, in
// one round trip.
func (s *Store) inPage(ctx context.Context, page *Page, slot, sql string, args []any, each func(pgx.Rows) error) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(snapshotSQL).QueryRow(func(row pgx.Row) error {
		var text string
		err := row.Scan(&text)
		if err == nil {
			page.Snapshot, err = ParseSnapshot(text)
		}
		return err
	})
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	batch.Queue(positionSQL, slot).QueryRow(func(row pgx.Row) error {
		var holder pgtype.Int4
		err := row.Scan(&page.Position, &holder)
		page.Holder = uint32(holder.Int32)
		return err
	})
	return s.pool.SendBatch(ctx, batch).Close()
}

const snapshotSQL = `SELECT pg_current_snapshot()::text`

// noSlot is for queries whose rows do not depend on who holds the slot.
const noSlot = ""

// insertPosition is where the WAL ends: whatever a query before it saw has committed before.
const insertPosition = `(pg_current_wal_insert_lsn() - '0/0')::bigint`

const positionSQL = `
SELECT ` + insertPosition + `,
       CASE WHEN $1 <> '' THEN (SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = $1) END`

// Snapshot is what a statement that begins now can see.
func (s *Store) Snapshot(ctx context.Context) (Snapshot, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var text string
	if err := s.pool.QueryRow(ctx, snapshotSQL).Scan(&text); err != nil {
		return Snapshot{}, fmt.Errorf("ask which transactions are under way: %w", err)
	}
	return ParseSnapshot(text)
}

// Position is where the WAL ends now.
func (s *Store) Position(ctx context.Context) (position uint64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := s.pool.QueryRow(ctx, `SELECT `+insertPosition).Scan(&position); err != nil {
		return 0, fmt.Errorf("ask where the WAL ends: %w", err)
	}
	return position, nil
}

// PassAll ends a transaction that is newer than all others, so that each snapshot from now on
// names those of them that are under way: one that is newer than all that have ended is not in
// the list of a snapshot (GetSnapshotData in procarray.c). It uses a transaction id and waits for nobody.
func (s *Store) PassAll(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if _, err := s.pool.Exec(ctx, `SELECT pg_current_xact_id()`); err != nil {
		return fmt.Errorf("end a transaction of its own: %w", err)
	}
	return nil
}

// ClaimDue claims rows whose time has come (retries, scheduled messages, leases that
// ran out). A claimed row's AvailableAt is the lease. With keyed, rows with an
// ordering key are among them: the first of its key, and what follows it directly and
// is due as well.
func (s *Store) ClaimDue(ctx context.Context, limit Limit, lease time.Duration, keyed bool) (Page, error) {
	return s.claim(ctx, s.sql.claimDue, limit, lease, keyed)
}

// FollowDue is ClaimDue for some keys alone, each named once. It costs as much as it finds,
// whatever else is due.
func (s *Store) FollowDue(ctx context.Context, keys []string, limit Limit, lease time.Duration) (Page, error) {
	return s.claim(ctx, s.sql.followDue, limit, lease, keys)
}

// NextDue is how long it takes until ClaimDue may find something; zero or less: it may
// now. Where no row has a time of its own, it is a day.
func (s *Store) NextDue(ctx context.Context) (time.Duration, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var seconds float64
	if err := s.pool.QueryRow(ctx, s.sql.nextDue).Scan(&seconds); err != nil {
		return 0, fmt.Errorf("ask what is due next in %s: %w", s.table, err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// Unclaimed are rows that nobody has claimed: at least of an age, and up to an id.
type Unclaimed struct {
	Age  time.Duration
	UpTo int64
}

// ClaimUnclaimed claims rows that nobody has claimed: for relays that do not hold the slot,
// while nobody does, and for those that only poll.
func (s *Store) ClaimUnclaimed(ctx context.Context, limit Limit, lease time.Duration, which Unclaimed) (Page, error) {
	return s.claim(ctx, s.sql.claimUnclaimed, limit, lease, true, which.Age, which.UpTo)
}

// FollowUnclaimed is ClaimUnclaimed for some keys alone, each named once.
func (s *Store) FollowUnclaimed(ctx context.Context, keys []string, limit Limit, lease time.Duration, which Unclaimed) (Page, error) {
	return s.claim(ctx, s.sql.followUnclaimed, limit, lease, keys, which.Age, which.UpTo)
}

// claim runs one of the claims; which are the keys, or whether there may be any, and more
// what it takes beside.
func (s *Store) claim(ctx context.Context, sql string, limit Limit, lease time.Duration, which any, more ...any) (Page, error) {
	var page Page
	scanner := newScanner()
	args := append([]any{limit.Rows, limit.Bytes, lease, which, max(limit.Run, 1)}, more...)
	err := s.inPage(ctx, &page, noSlot, sql, args, func(rows pgx.Rows) error {
		m, err := scanner.scan(rows)
		page.Messages = append(page.Messages, m)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("claim rows of %s: %w", s.table, err)
	}
	slices.SortFunc(page.Messages, func(a, b *outbox.Message) int { return cmp.Compare(a.ID, b.ID) })
	return page, nil
}

// Head is the oldest row of an ordering key.
type Head struct {
	Key string
	Ref outbox.Ref
	// Ready tells that it may leave now; otherwise it waits for a retry, its time, a
	// lease, a newer relay, or a person.
	Ready bool
}

// KeyHeads lists keys that have rows, in the order of the database, from the key
// after on (which comes again).
func (s *Store) KeyHeads(ctx context.Context, after string, rows int) ([]Head, Snapshot, error) {
	var page Page
	var heads []Head
	err := s.inPage(ctx, &page, noSlot, s.sql.keyHeads, []any{after, rows}, func(rows pgx.Rows) error {
		var head Head
		err := rows.Scan(&head.Key, &head.Ref.ID, (*[16]byte)(&head.Ref.MessageID), &head.Ready)
		heads = append(heads, head)
		return err
	})
	if err != nil {
		return nil, Snapshot{}, fmt.Errorf("sweep the ordering keys of %s: %w", s.table, err)
	}
	return heads, page.Snapshot, nil
}

// FromTheOldest is the Place.After of a key that is read from its oldest row on.
const FromTheOldest = math.MinInt64

// Place is where to read an ordering key: from the first row whose id is greater than After.
type Place struct {
	Key   string
	After int64
}

// KeyRows are the first rows of an ordering key from a place on, in their order.
type KeyRows struct {
	Place
	Rows []KeyRow
	// More tells that as many rows were read as were asked for: others may follow.
	More bool
}

// KeyRow is one of them.
type KeyRow struct {
	Message *outbox.Message
	// WrittenBy is the transaction that wrote the row as it is, as Snapshot.Finished takes it.
	WrittenBy uint32
	// Ready tells that it may leave, as far as the table says.
	Ready bool
	// Read tells that the payload was read: it was within the bytes allowed.
	Read bool
}

// KeyPage is what one query read of some keys.
type KeyPage struct {
	Keys     []KeyRows // in the order asked for, one each
	Snapshot Snapshot
	Position uint64
	Holder   uint32
}

// RowsOfKeys reads the first rows of each key from its place on, at most limit.Rows of each.
func (s *Store) RowsOfKeys(ctx context.Context, slot string, places []Place, limit Limit) (KeyPage, error) {
	page := KeyPage{Keys: make([]KeyRows, len(places))}
	keys, after := make([]string, len(places)), make([]int64, len(places))
	for i, place := range places {
		page.Keys[i].Place = place
		keys[i], after[i] = place.Key, place.After
	}
	var read Page
	var row KeyRow
	var nth int // from 1; a collation may take other spellings for the key
	scanner := newScanner(&row.WrittenBy, &row.Ready, &row.Read, &nth)
	err := s.inPage(ctx, &read, slot, s.sql.keyRows, []any{keys, limit.Rows, limit.Bytes, after}, func(rows pgx.Rows) error {
		m, err := scanner.scan(rows)
		if err != nil {
			return err
		}
		row.Message = m
		key := &page.Keys[nth-1]
		key.Rows = append(key.Rows, row)
		key.More = len(key.Rows) >= limit.Rows
		return nil
	})
	if err != nil {
		return KeyPage{}, fmt.Errorf("read rows by ordering key of %s: %w", s.table, err)
	}
	page.Snapshot, page.Position, page.Holder = read.Snapshot, read.Position, read.Holder
	return page, nil
}
