-- github.com/namastack/namastack-outbox, namastack-outbox-jpa/src/main/resources/schema/postgres/outbox-tables.sql. The
-- message is that of namastack-outbox-rabbit, RabbitOutboxAutoConfiguration.kt and RabbitOutboxPublisher.kt, with
-- Spring's JSON converter; namastack-outbox-core, BaseHandlerMethod.kt, makes the handler_id.
usage: the table of Namastack Outbox for Spring
table: outbox_record
waiting: status = 'NEW'
-- Other rows are no messages, and stay in the table.
only: handler_id LIKE 'io.namastack.outbox.rabbit.RabbitOutboxHandler#%'
-- Before 1.0 the application itself sent the message (OutboxRecordProcessor).
older.retry_count: --set routing_key=aggregate_id --set ordering_key=aggregate_id --set payload=payload
    --set message_id=id --set headers.__TypeId__=event_type --set created_at=created_at --set attempts=retry_count
    --set "available_at=CASE WHEN retry_count > 0 THEN next_retry_at END" --waiting "status = 'NEW'"
message_id: id
exchange: 'outbox-events'
routing_key: record_key
ordering_key: record_key
payload: payload
properties.content_encoding: 'UTF-8'
headers.__TypeId__: record_type
created_at: created_at
attempts: failure_count
-- Before the first failure it is the time of creation, by the application's clock.
available_at: CASE WHEN failure_count > 0 THEN next_retry_at END
