-- debezium.io, "Outbox Event Router", "Basic outbox table"; the columns timestamp and tracingspancontext are those of
-- github.com/debezium/debezium-quarkus, OutboxEventHbmWriter.java and DataMapTracingSetter.java.
usage: the table of Debezium's outbox event router
table: outboxevent
missing.timestamp: NULL::timestamptz
missing.tracingspancontext: NULL::text
message_id: id
routing_key: 'outbox.event.' || aggregatetype
ordering_key: aggregatetype || ':' || aggregateid
payload: payload
properties.type: type
-- The output of java.util.Properties: lines of key=value, with backslashes before some characters.
headers: (SELECT jsonb_object_agg(translate(m[1], E'\\', ''), translate(m[2], E'\\', ''))
    FROM regexp_matches(tracingspancontext::text, '^([^#!=][^=]*)=(.*)$', 'gn') m)
headers.aggregateid: aggregateid
created_at: "timestamp"
