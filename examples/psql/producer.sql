-- psql "$DATABASE_URL" -f producer.sql
\set ON_ERROR_STOP on

BEGIN;
INSERT INTO orders (id, customer) VALUES (42, 'acme');
INSERT INTO outbox (routing_key, payload) VALUES ('orders', '{"order_id": 42, "customer": "acme"}');
COMMIT;

-- No order is stored and no message is sent.
BEGIN;
INSERT INTO orders (id, customer) VALUES (43, 'acme');
INSERT INTO outbox (routing_key, payload) VALUES ('orders', '{"order_id": 43, "customer": "acme"}');
ROLLBACK;
