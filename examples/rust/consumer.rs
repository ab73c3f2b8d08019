//! cdc-relay run --publisher exec -- target/debug/consumer
//!
//! Reads a message from each line, and answers after COMMIT. If it ends before, the relay sends the message again.
use std::collections::HashMap;
use std::env;
use std::error::Error;

use serde_json::value::RawValue;
use serde_json::{from_str, json, Value};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut client, connection) =
        tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let message: HashMap<&str, &RawValue> = from_str(&line)?; // raw: serde_json cannot read deeply nested payloads
        let message_id: Uuid = from_str(message["message_id"].get())?;
        let (outcome, detail) = match order_id(&message) {
            None => ("impossible", "no order_id".to_string()),
            Some(order_id) => match handle(&mut client, message_id, order_id).await {
                Ok(()) => ("confirmed", String::new()),
                Err(err) if err.as_db_error().is_some() => ("rejected", err.to_string()),
                Err(err) => return Err(err.into()), // the relay starts another consumer
            },
        };
        println!(
            "{}",
            json!({"message_id": message_id, "outcome": outcome, "detail": detail})
        );
    }
    Ok(())
}

fn order_id(message: &HashMap<&str, &RawValue>) -> Option<i32> {
    let order: Value = from_str(message.get("payload")?.get()).ok()?;
    order["order_id"].as_i64()?.try_into().ok()
}

async fn handle(
    client: &mut Client,
    message_id: Uuid,
    order_id: i32,
) -> Result<(), tokio_postgres::Error> {
    let tx = client.transaction().await?; // the inbox and the work commit together
    let new = tx
        .execute(
            "INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING",
            &[&message_id],
        )
        .await?;
    if new == 1 {
        tx.execute("INSERT INTO parcels (order_id) VALUES ($1)", &[&order_id])
            .await?;
    }
    tx.commit().await
}
