package store

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The server checks sizes before it sends a row, so that a sweep never gets a value that it cannot use. {c} stands for
// a column.

const (
	// rawBytes is the size of a jsonb column without compression. It converts nothing.
	rawBytes = `CASE WHEN pg_catalog.pg_column_compression({c}) IS NULL THEN pg_catalog.pg_column_size({c})
         ELSE pg_catalog.pg_column_size(pg_catalog.jsonb_extract_path({c}, VARIADIC '{}'::text[])) END`
	// jsonbIsOver is the condition that a jsonb column is larger than a sweep takes. AMQP needs at least a quarter of
	// the bytes of jsonb. In jsonb, a number of 12 bytes may have 147,457 digits; so numbers are checked before the
	// text is made. Small values, which are frequent, are spared the checks that they do not need.
	jsonbIsOver = `CASE WHEN {c} IS NULL
           OR pg_catalog.pg_column_compression({c}) IS NULL AND pg_catalog.pg_column_size({c}) < 128 THEN false
         WHEN pg_catalog.pg_column_size({c}) > {most} THEN true WHEN ` + rawBytes + ` > {most} THEN true
         WHEN pg_catalog.jsonb_path_exists({c},
           'strict $.** ? (@.type() == "number"
             && (@ >= 1e1000 || @ <= -1e1000 || (@ < 1e-1000 && @ > -1e-1000 && @ != 0)))') THEN true
         WHEN pg_catalog.pg_column_compression({c}) IS NULL AND pg_catalog.pg_column_size({c}) < 2048 THEN false
         WHEN EXISTS (SELECT FROM pg_catalog.jsonb_path_query({c}, 'strict $.** ? (@.type() == "number")') of_(number)
                      WHERE pg_catalog.scale(of_.number::numeric) > 1000) THEN true
         ELSE pg_catalog.octet_length({c}::text) > {most} END`
	// largerJSON stands for a value that is over its limit. No value but an object can be published anyway.
	largerJSON = `"larger than a sweep reads"`
)

// sizing fills in a column and its limit.
func sizing(sql, column string) string {
	return strings.NewReplacer("{c}", column, "{most}", strconv.Itoa(outbox.MostHeaderBytes)).Replace(sql)
}

// rowSize is roughly the memory of a row. It decompresses nothing: a search must stay cheap. Of a
// compressed column, four times the stored bytes count, as is usual for JSON.
func rowSize(headers []string) string {
	const jsonb = `least(4 * coalesce(pg_catalog.pg_column_size({c}), 0), {most})`
	size := `(CASE WHEN pg_catalog.pg_column_compression(r.payload) IS NULL THEN 1 ELSE 4 END
       * coalesce(pg_catalog.pg_column_size(r.payload), 0)::bigint
       + coalesce(pg_catalog.octet_length(r.payload_bytes), 0)
       + ` + sizing(jsonb, "r.headers") + ` + ` + sizing(jsonb, "r.properties")
	for _, name := range append([]string{"routing_key", "exchange", "ordering_key"}, headers...) {
		size += " + " + textSize("r."+outbox.QuoteIdentifier(name))
	}
	return size + " + 256)"
}

// mostRead is how many bytes of bodies a statement reads.
const mostRead = 8 << 20

// bodySize is the size of a body as it is sent.
const bodySize = `coalesce(CASE WHEN pg_catalog.pg_column_compression(r.payload) IS NULL
         THEN pg_catalog.pg_column_size(r.payload) ELSE pg_catalog.octet_length(r.payload::text) END, 0)::bigint
       + coalesce(pg_catalog.octet_length(r.payload_bytes), 0)`

// readSoFar is how many bytes of bodies the statement has read.
const readSoFar = `coalesce(nullif(pg_catalog.current_setting('cdc_relay.read', true), ''), '0')::bigint`

// withSize joins the rows to their sizes, each of which is computed once: that may decompress the body. Rows beyond the
// limit have none.
const withSize = ` r CROSS JOIN LATERAL (
  SELECT CASE WHEN ` + readSoFar + ` < $2::bigint THEN ` + bodySize + ` END AS size OFFSET 0) body`

// fits is the condition for the rows within $2 bytes, and for none after the first row beyond. Postgres calls it for
// row after row; a setting of the transaction has the sum. Rows of $3 bytes, of which a statement reads only so many
// that they always fit, are not added.
func fits() string {
	const jsonb = ` + coalesce(CASE WHEN pg_catalog.pg_column_size({c}) > {most} THEN {most}
         ELSE ` + rawBytes + ` END, 0)`
	size := `body.size` + sizing(jsonb, "r.headers") + sizing(jsonb, "r.properties")
	return `CASE WHEN body.size IS NULL THEN false WHEN ` + size + ` <= $3::bigint THEN true
         ELSE pg_catalog.set_config('cdc_relay.read', (` + readSoFar + ` + ` + size + `)::text, true) IS NOT NULL END`
}

// textSize is how many bytes of another column a sweep reads. Of text it reads only the size.
func textSize(column string) string {
	return sizing(`least(coalesce(pg_catalog.octet_length({c}::text), 0), {most})`, column)
}

// sweptColumns are the columns of a message, without a body of more than $2 bytes, and the name of a text column that
// is over its limit, which is then null.
func sweptColumns(headers []string) string {
	const isOver = `pg_catalog.octet_length({c}::text) > {most}`
	limited := map[string]string{
		"r.headers":    sizing(`CASE WHEN (`+jsonbIsOver+`) THEN '`+largerJSON+`'::jsonb ELSE {c} END`, "r.headers"),
		"r.properties": sizing(`CASE WHEN (`+jsonbIsOver+`) THEN '`+largerJSON+`'::jsonb ELSE {c} END`, "r.properties"),
	}
	for column, short := range map[string]string{"r.payload": "'null'", "r.payload_bytes": "''"} {
		limited[column] = "CASE WHEN body.size > $2::bigint AND " + column + " IS NOT NULL THEN " + short +
			" ELSE " + column + " END"
	}
	var over strings.Builder
	limit := func(name, column string) {
		limited[column] = sizing(`CASE WHEN `+isOver+` THEN NULL ELSE {c} END`, column)
		over.WriteString(sizing(" WHEN "+isOver+" THEN ", column) + outbox.QuoteLiteral(name))
	}
	limit("exchange", "r.exchange")
	limit("routing_key", "r.routing_key")
	for _, name := range headers {
		limit(name, "r."+outbox.QuoteIdentifier(name))
	}
	return MessageColumnsAs(headers, func(column string) string {
		if expression, has := limited[column]; has {
			return expression
		}
		return column
	}) + ", CASE" + over.String() + " END"
}

// bareColumns are the same for rows of which the server cannot send some column: only what a settlement needs.
func bareColumns(headers []string) string {
	kinds := map[string]string{
		"r.exchange": "text", "r.routing_key": "text",
		"r.payload": "json", "r.payload_bytes": "bytea",
		"r.headers": "jsonb", "r.properties": "jsonb",
	}
	for _, name := range headers {
		kinds["r."+outbox.QuoteIdentifier(name)] = "text"
	}
	return MessageColumnsAs(headers, func(column string) string {
		if kind, large := kinds[column]; large {
			return "NULL::" + kind
		}
		return column
	}) + ", NULL::text"
}

// limit removes what is over its limit from a message that was read; column is the name of such a text column. The
// server has not measured small jsonb.
func limit(m *outbox.Message, column *string) {
	if column != nil {
		m.Oversize = *column
	}
	m.Headers, m.Properties = limitJSON(m, "headers", m.Headers), limitJSON(m, "properties", m.Properties)
}

func limitJSON(m *outbox.Message, column string, json []byte) []byte {
	size := len(json)
	if string(json) == largerJSON {
		size = outbox.MostHeaderBytes + 1
	}
	if !m.Fits(column, size) {
		return nil
	}
	return json
}
