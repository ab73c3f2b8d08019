// node-postgres
import pg from 'pg'

async function transaction(client, work) {
  await client.query('BEGIN')
  try {
    await work()
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  }
}

async function placeOrder(client, orderId) {
  await client.query("INSERT INTO orders (id, customer) VALUES ($1, 'acme')", [orderId])
  await client.query('INSERT INTO outbox (routing_key, payload) VALUES ($1, $2)', ['orders', { order_id: orderId, customer: 'acme' }])
}

const client = new pg.Client(process.env.DATABASE_URL)
await client.connect()
await transaction(client, () => placeOrder(client, 42))

// No order is stored and no message is sent.
const failed = new Error('no stock')
await transaction(client, async () => {
  await placeOrder(client, 43)
  throw failed
}).catch((error) => { if (error !== failed) throw error })
await client.end()
