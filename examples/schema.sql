-- The tables of the examples besides the outbox. The shop's database:
CREATE TABLE orders (id integer PRIMARY KEY, customer text NOT NULL);

-- The consumer's database (here the same): the inbox, and the result of its work.
CREATE TABLE inbox (message_id uuid PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE parcels (order_id integer NOT NULL);

-- The role of shop and consumer. On the outbox it has only INSERT.
GRANT INSERT ON outbox TO :"app";
GRANT SELECT, INSERT ON orders, inbox, parcels TO :"app";
