-- A table of a topic (github.com/ThreeDotsLabs/watermill-sql, pkg/sql/schema_adapter_postgresql.go and
-- queue_schema_adapter_postgresql.go), with or without the envelope of the forwarder (github.com/ThreeDotsLabs/watermill,
-- components/forwarder/envelope.go). Headers are those of github.com/ThreeDotsLabs/watermill-amqp,
-- pkg/amqp/marshaler.go.
usage: the table of a topic of Watermill's SQL publisher
waiting: NOT acked
message_id: uuid
routing_key: regexp_replace(from_table, '^watermill_', '')
payload: payload
headers: metadata
headers._watermill_message_uuid: uuid
created_at: created_at
then:
    FOR pass IN 1..2 LOOP
        IF payload_bytes IS NOT NULL THEN -- mostly JSON
            BEGIN
                payload := convert_from(payload_bytes, 'UTF8')::json;
                payload_bytes := NULL;
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END IF;
        EXIT WHEN pass = 2 OR json_typeof(payload) IS DISTINCT FROM 'object';
        EXIT WHEN ARRAY(SELECT k COLLATE "C" FROM json_object_keys(payload) k ORDER BY 1)
            <> '{destination_topic,metadata,payload,uuid}';
        envelope := payload; -- of the forwarder
        routing_key := envelope ->> 'destination_topic';
        message_id := envelope ->> 'uuid';
        headers := CASE json_typeof(envelope -> 'metadata') WHEN 'object' THEN (envelope -> 'metadata')::text::jsonb
            ELSE '{}' END || jsonb_build_object('_watermill_message_uuid', envelope ->> 'uuid');
        payload := NULL;
        payload_bytes := decode(coalesce(envelope ->> 'payload', ''), 'base64');
    END LOOP;
    -- github.com/ThreeDotsLabs/watermill, components/delay/delay.go
    available_at := coalesce(available_at, (headers ->> '_watermill_delayed_until')::timestamptz);
