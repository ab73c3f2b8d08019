package store

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The server checks sizes before it sends a row, so that a claim never gets a value that it cannot use. {c} stands for
// a column.

const (
	// rawBytes is the size of a jsonb column without compression. It converts nothing.
	rawBytes = `CASE WHEN pg_catalog.pg_column_compression({c}) IS NULL THEN pg_catalog.pg_column_size({c})
         ELSE pg_catalog.pg_column_size(pg_catalog.jsonb_extract_path({c}, VARIADIC '{}'::text[])) END`
	// jsonbIsOver is the condition that a jsonb column is larger than a claim takes. AMQP needs at least a quarter of
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
	largerJSON = `"larger than a claim reads"`
)

// sizing fills in a column and its limit.
func sizing(sql, column string) string {
	return strings.NewReplacer("{c}", column, "{most}", strconv.Itoa(outbox.MostHeaderBytes)).Replace(sql)
}

// rowSize is roughly the memory of a row. It decompresses nothing: a search may not cost what its claims save. Of a
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

// mostUnpacked is how many bytes of compressed columns a claim reads, and then no further row with such a column. The
// estimate of their sizes may be far too small.
const mostUnpacked = 8 << 20

// fits is the condition for the rows within mostUnpacked. Postgres calls it for one row after the other; a setting of
// the transaction has the sum.
func fits() string {
	const sum = `coalesce(nullif(pg_catalog.current_setting('cdc_relay.unpacked', true), ''), '0')::bigint`
	const raw = ` + CASE WHEN pg_catalog.pg_column_compression({c}) IS NULL THEN 0 ELSE `
	const jsonb = raw + `CASE WHEN pg_catalog.pg_column_size({c}) > {most} THEN 0
           ELSE pg_catalog.pg_column_size(pg_catalog.jsonb_extract_path({c}, VARIADIC '{}'::text[])) END END`
	return `CASE WHEN coalesce(pg_catalog.pg_column_compression(r.payload), pg_catalog.pg_column_compression(r.headers),
           pg_catalog.pg_column_compression(r.properties)) IS NULL THEN true
         WHEN ` + sum + ` >= ` + strconv.Itoa(mostUnpacked) + ` THEN false
         ELSE pg_catalog.set_config('cdc_relay.unpacked', (` + sum +
		sizing(raw+`pg_catalog.octet_length({c}::text) END`, "r.payload") +
		sizing(jsonb, "r.headers") + sizing(jsonb, "r.properties") + `)::text, true) IS NOT NULL END`
}

// textSize is how many bytes of another column a claim gets. Of text it reads only the size.
func textSize(column string) string {
	return sizing(`least(coalesce(pg_catalog.octet_length({c}::text), 0), {most})`, column)
}

// claimedColumns are the columns of a message, and the name of a text column that is over its limit, which is then
// null.
func claimedColumns(headers []string) string {
	const isOver = `pg_catalog.octet_length({c}::text) > {most}`
	limited := map[string]string{
		"r.headers":    sizing(`CASE WHEN (`+jsonbIsOver+`) THEN '`+largerJSON+`'::jsonb ELSE {c} END`, "r.headers"),
		"r.properties": sizing(`CASE WHEN (`+jsonbIsOver+`) THEN '`+largerJSON+`'::jsonb ELSE {c} END`, "r.properties"),
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
