// Package catalog has conditions on Postgres's catalogs that several packages share.
package catalog

// IsOutbox is the condition for relations c of pg_class that are an outbox: a table with a dead-letter table, or with
// the columns of an outbox, as one that was renamed or moved without the other.
const IsOutbox = `(c.relkind IN ('r', 'p') AND NOT c.relispartition AND (
    EXISTS (SELECT FROM pg_catalog.pg_class d WHERE d.relnamespace = c.relnamespace AND d.relkind IN ('r', 'p')
            AND d.relname = c.relname::text || '_dead_letter'::text)
    OR 4 = (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
            AND a.attname IN ('routing_key', 'ordering_key', 'available_at', 'possible_duplicate'))))`
