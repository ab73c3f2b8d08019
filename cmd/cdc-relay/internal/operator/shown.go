package operator

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// A view reads no value before it knows its size, so that a large row neither fills the memory nor delays the rows
// beside it. The size of a text or a bytea is in its header, and so is the stored size of any value. A compressed JSON
// value must be read to know its true size: it is shown only if its stored size is small.
const (
	// MostShown is up to how many bytes one value of one message has if it is shown: the body, the headers, the
	// properties or redacted_payload.
	MostShown = outbox.MostHeaderBytes
	// MostListed is the same for a row of a list.
	MostListed = 8 << 10
	// fewOfOneName is up to how many rows of one name are shown with MostShown; more are shown with MostListed.
	fewOfOneName = 4
	// mostGroupedHeaders is up to how many bytes the headers of a row have if one of them is read from many rows.
	mostGroupedHeaders = 32 << 10
	// mostText is up to how many bytes of a text are shown whole. It is above the limit of an ordering key.
	mostText = 4 << 10
)

// shownText is a text column, or its start and its size if it is long.
func shownText(column string) string {
	const sql = `CASE WHEN pg_catalog.octet_length({c}) <= {most_text} THEN {c}
       ELSE pg_catalog.left({c}, 1000) || '… (' || pg_catalog.octet_length({c})::text || ' bytes)' END`
	return strings.NewReplacer("{c}", column, "{most_text}", strconv.Itoa(mostText)).Replace(sql)
}

// headerText is the value of a header as text: of a string, a number or a boolean, else null. Name is a parameter.
func headerText(name string) string {
	const sql = `CASE WHEN pg_catalog.jsonb_typeof(r.headers -> {name}::text) IN ('string', 'number', 'boolean')
       THEN r.headers ->> {name}::text END`
	return strings.ReplaceAll(sql, "{name}", name)
}

// shownHeader is headerText for people: cut, and an empty text for null. So are headers that are too large to read from
// many rows.
func shownHeader(name string) string {
	return `coalesce(CASE WHEN ` + weight("r.headers") + ` <= ` + strconv.Itoa(mostGroupedHeaders) +
		` THEN pg_catalog.left(` + headerText(name) + `, 255) END, '')`
}

// errorCode is the code at the start of a text such as last_error.
func errorCode(column string) string {
	return `pg_catalog.split_part(pg_catalog.left(` + column + `, 200), ':', 1)`
}

// weight is roughly the true size of a value. It assumes that values seldom shrink to less than an eighth.
func weight(column string) string {
	const sql = `pg_catalog.pg_column_size({c})::bigint
       * CASE WHEN pg_catalog.pg_column_compression({c}) IS NULL THEN 1 ELSE 8 END`
	return strings.ReplaceAll(sql, "{c}", column)
}

// isSmall is the condition for a value of which little must be read.
func isSmall(column string) string { return weight(column) + ` <= {most}` }

// shownJSON is the text of a JSON column of up to {most} bytes; a larger value is null. A number such as 1e100000 has a
// short form in jsonb and a long text, so the text has a limit, too.
func shownJSON(column string) string {
	return strings.ReplaceAll(`CASE WHEN `+isSmall("{c}")+` THEN (
         SELECT CASE WHEN pg_catalog.octet_length(shown_.t) <= {most} THEN shown_.t END
           FROM (SELECT {c}::text AS t OFFSET 0) shown_) END`, "{c}", column)
}

// shownBytes is a bytea column of up to {most} bytes; a larger value is null.
func shownBytes(column string) string {
	return strings.ReplaceAll(`CASE WHEN pg_catalog.octet_length({c}) <= {most} THEN {c} END`, "{c}", column)
}

// payloadSize is the size of the body, and its precision: the stored size of a large compressed body is less.
func payloadSize() string {
	const sql = `CASE WHEN r.payload_bytes IS NOT NULL THEN pg_catalog.octet_length(r.payload_bytes)
         WHEN r.payload IS NULL THEN 0
         WHEN {small} THEN pg_catalog.octet_length(r.payload::text)
         ELSE pg_catalog.pg_column_size(r.payload) END,
       CASE WHEN r.payload_bytes IS NOT NULL OR r.payload IS NULL
         OR pg_catalog.pg_column_compression(r.payload) IS NULL OR {small} THEN 'exact' ELSE 'at_least' END`
	return strings.ReplaceAll(sql, "{small}", "coalesce("+isSmall("r.payload")+", false)")
}

// isTooMuch reports whether the server could not give all values, in time or within its limits.
func isTooMuch(err error) bool {
	class := pgcode.Class(err)
	return pgcode.Is(err, pgerrcode.QueryCanceled) || class == pgcode.TooComplex || class == pgcode.Resources
}

// mostListed is {most} for a list.
func mostListed() string { return strconv.Itoa(MostListed) }

// mostOfNamed is {most} for the rows of one message, in a statement that has them as found.
func mostOfNamed() string {
	return fmt.Sprintf(`(SELECT CASE WHEN count(*) > %d THEN %d ELSE %d END FROM found)`,
		fewOfOneName, MostListed, MostShown)
}

// Large is a value that is not shown.
type Large struct {
	// Column is its column.
	Column string
	// Stored is its size on disk in bytes, which may be less than its length.
	Stored int64
}

// larger returns the value if it is set and not shown.
func larger(column string, shown []byte, stored *int64) []Large {
	if shown != nil || stored == nil {
		return nil
	}
	return []Large{{column, *stored}}
}
