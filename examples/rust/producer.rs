//! An order and its message, with tokio-postgres.
use std::env;
use std::error::Error;

use serde_json::json;
use tokio_postgres::types::Json;
use tokio_postgres::{NoTls, Transaction};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut client, connection) =
        tokio_postgres::connect(&env::var("DATABASE_URL")?, NoTls).await?;
    tokio::spawn(connection);

    let tx = client.transaction().await?;
    place_order(&tx, 42).await?;
    tx.commit().await?;

    // No order is stored and no message is sent.
    let tx = client.transaction().await?;
    place_order(&tx, 43).await?;
    tx.rollback().await?;
    Ok(())
}

async fn place_order(tx: &Transaction<'_>, order_id: i32) -> Result<(), tokio_postgres::Error> {
    tx.execute(
        "INSERT INTO orders (id, customer) VALUES ($1, 'acme')",
        &[&order_id],
    )
    .await?;
    let payload = Json(json!({"order_id": order_id, "customer": "acme"}));
    tx.execute(
        "INSERT INTO outbox (routing_key, payload) VALUES ('orders', $1)",
        &[&payload],
    )
    .await?;
    Ok(())
}
