-- The table of published messages of DotNetCore.CAP (github.com/dotnetcore/CAP,
-- src/DotNetCore.CAP.PostgreSql/IStorageInitializer.PostgreSql.cs and IDataStorage.PostgreSql.cs). The message is that of
-- src/DotNetCore.CAP.RabbitMQ/ITransport.RabbitMQ.cs; CAP.RabbiMQOptions.cs names the exchange.
usage: the table of published messages of CAP for .NET
table: cap.published
waiting: "StatusName" <> 'Succeeded'
-- {"Headers": {…}, "Value": …}, with small letters if the application says so
message: "Content"::json
outer_headers: coalesce(message -> 'Headers', message -> 'headers')
value: coalesce(message -> 'Value', message -> 'value')
error: CASE WHEN json_typeof(outer_headers) IS DISTINCT FROM 'object' THEN 'Content has no Headers' END
message_id: "Id"
exchange: 'cap.default.router'
routing_key: "Name"
-- CAP sends no body for a null.
payload: CASE WHEN json_typeof(value) <> 'null' THEN value END
headers: outer_headers
attempts: "Retries"
-- Of a new row it is now, without the application's time zone.
created_at: CASE WHEN waited THEN "Added"::timestamptz END
-- ExpiresAt is the time to send only of these rows, else that to delete the row. A new row has only the delay, a TimeSpan.
available_at: coalesce(CASE WHEN "StatusName" IN ('Delayed', 'Queued') THEN "ExpiresAt"::timestamptz END,
    CASE WHEN waited THEN "Added"::timestamptz ELSE now() END
        + regexp_replace(outer_headers ->> 'cap-delaytime', '[.](?=[0-9]+:)', ' ')::interval)
