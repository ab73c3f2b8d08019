-- The tables of the examples besides the outbox. The shop's database:
CREATE TABLE orders (id integer PRIMARY KEY, customer text NOT NULL);

-- The consumer's database (here the same): the inbox, and the result of its work.
CREATE TABLE inbox (message_id uuid PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE parcels (order_id integer NOT NULL);

-- The role of shop and consumer. On the outbox it has the grants of cdc-relay setup --app-role: INSERT on the columns
-- that are the application's, SELECT on those that ORMs ask for with INSERT … RETURNING, and the sequence for lastval.
GRANT INSERT (message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties,
  redacted_payload, created_at, available_at, expires_at, max_attempts, coalesce_key) ON outbox TO :"app";
GRANT SELECT (id, message_id) ON outbox TO :"app";
GRANT USAGE ON SEQUENCE outbox_id_seq TO :"app";
GRANT SELECT, INSERT ON orders, inbox, parcels TO :"app";
