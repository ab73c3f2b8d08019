// Drizzle, over node-postgres
import { drizzle } from 'drizzle-orm/node-postgres'
import { integer, json, pgTable, text } from 'drizzle-orm/pg-core'
import pg from 'pg'

const orders = pgTable('orders', { id: integer('id').primaryKey(), customer: text('customer') })
const outbox = pgTable('outbox', { routingKey: text('routing_key'), payload: json('payload') })

async function placeOrder(tx, orderId) {
  await tx.insert(orders).values({ id: orderId, customer: 'acme' })
  await tx.insert(outbox).values({ routingKey: 'orders', payload: { order_id: orderId, customer: 'acme' } })
}

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const db = drizzle(pool)
await db.transaction((tx) => placeOrder(tx, 42))

// No order is stored and no message is sent.
const failed = new Error('no stock')
await db.transaction(async (tx) => {
  await placeOrder(tx, 43)
  throw failed
}).catch((error) => { if (error !== failed) throw error })
await pool.end()
