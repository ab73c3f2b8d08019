package operator

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Page is a part of a list: at most Limit rows (1 or more) after a cursor. "" is the start.
type Page struct {
	After string
	Limit int
	// Payload asks for the bodies of the rows.
	Payload bool
}

// Listing is a page of rows. Next is the cursor of the next page; "": the end. A page reads at most MostLooked rows, so
// it may have fewer than Limit, even none, and still a next page.
type Listing[T any] struct {
	Rows []T
	Next string
}

// MostLooked is how many rows one page reads.
const MostLooked = MostCounted

// ErrCursor is returned for a cursor that does not come from a page of the same list.
var ErrCursor = errors.New("want the cursor that the previous page of this list printed")

// cursor is the last row that was read, in the order of the list.
type cursor struct {
	List string `json:"l"` // the order
	// Start: the list begins; no row of it was read.
	Start bool    `json:"s,omitempty"`
	At    *string `json:"t,omitempty"`
	ID    int64   `json:"i,omitempty"`
	Key   *string `json:"k,omitempty"`
}

// text is opaque and needs no quotes in a shell or a URL.
func (c cursor) text() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // every field can be JSON
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// parseCursor returns nil for the start.
func parseCursor(text string, lists ...string) (*cursor, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // the start
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	var c cursor
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return nil, ErrCursor
	}
	if !slices.Contains(lists, c.List) || c.At != nil && !isTimeText(*c.At) ||
		c.Key != nil && strings.Contains(*c.Key, "\x00") {
		return nil, ErrCursor
	}
	return &c, nil
}

// isTimeText reports whether a text can come from timeText. People can change a cursor, and Postgres must not have to
// reject it.
func isTimeText(text string) bool {
	if text == "infinity" || text == "-infinity" {
		return true
	}
	year, rest, _ := strings.Cut(strings.TrimSuffix(text, " BC"), "-")
	const last = 294276 // of a timestamptz
	if n, err := strconv.ParseUint(year, 10, 32); err != nil || n < 1 || n > last {
		return false
	}
	_, err := time.Parse("2006-01-02 15:04:05.999999Z07:00", "2000-"+rest)
	return err == nil
}

// place is the place of a row in a page.
type place struct {
	cursor
	// matches: the filter selects the row. last: the page reads no further.
	matches, last bool
}

// collectPage reads the rows of a page, and one more row or the last that was read.
func collectPage[T any](
	ctx context.Context, db querier, sql string, args []any, limit int, scan func(pgx.CollectableRow) (T, place, error),
) (list Listing[T], err error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return list, err
	}
	defer rows.Close()
	for before := (place{}); rows.Next(); {
		row, at, err := scan(rows)
		if err != nil {
			return list, err
		}
		if len(list.Rows) == limit && (at.matches || at.last) {
			list.Next = before.text()
			break
		}
		if at.matches {
			list.Rows = append(list.Rows, row)
		}
		if at.last {
			list.Next = at.text()
			break
		}
		before = at
	}
	rows.Close()
	return list, rows.Err()
}

// timeText keeps microseconds and infinities.
func timeText(t pgtype.Timestamptz) *string {
	text := "infinity"
	switch t.InfinityModifier {
	case pgtype.NegativeInfinity:
		text = "-infinity"
	case pgtype.Finite:
		text = t.Time.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
		if year := t.Time.UTC().Year(); year < 1 { // Postgres writes years before 1 with BC
			bc := time.Date(1-year, 1, 1, 0, 0, 0, 0, time.UTC)
			text = bc.Format("2006") + t.Time.UTC().Format("-01-02 15:04:05.999999Z07:00") + " BC"
		}
	}
	return &text
}
