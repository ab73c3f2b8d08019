-- cdc-relay drain --publisher stdout | psql "$DATABASE_URL" -f consumer.sql
--
-- Without a broker, to try the inbox: a message counts as published once its line is in the pipe.
\set ON_ERROR_STOP on

BEGIN;
CREATE TEMPORARY TABLE lines (message json) ON COMMIT DROP;
\copy lines FROM pstdin WITH (FORMAT csv, DELIMITER E'\x01', QUOTE E'\x02')

-- The inbox and the work commit together. A message that is already in the inbox is skipped.
WITH new AS (
  INSERT INTO inbox (message_id) SELECT (message ->> 'message_id')::uuid FROM lines ON CONFLICT DO NOTHING RETURNING message_id
), received AS (
  SELECT DISTINCT ON (message ->> 'message_id') message FROM lines
)
INSERT INTO parcels (order_id)
SELECT (message #>> '{payload,order_id}')::integer FROM received JOIN new ON new.message_id = (message ->> 'message_id')::uuid;
COMMIT;
