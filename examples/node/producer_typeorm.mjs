// TypeORM. The key is message_id, generated here: id would need INSERT … RETURNING, and so SELECT (id).
import { randomUUID } from 'node:crypto'
import { DataSource, EntitySchema } from 'typeorm'

const Order = new EntitySchema({
  name: 'Order', tableName: 'orders',
  columns: { id: { type: 'int', primary: true }, customer: { type: 'text' } },
})
const Outbox = new EntitySchema({
  name: 'Outbox', tableName: 'outbox',
  columns: {
    message_id: { type: 'uuid', primary: true },
    routing_key: { type: 'text' },
    payload: { type: 'json' },
  },
})

async function placeOrder(manager, orderId) {
  await manager.insert(Order, { id: orderId, customer: 'acme' })
  await manager.insert(Outbox, { message_id: randomUUID(), routing_key: 'orders', payload: { order_id: orderId, customer: 'acme' } })
}

const database = await new DataSource({ type: 'postgres', url: process.env.DATABASE_URL, entities: [Order, Outbox], installExtensions: false }).initialize()
await database.transaction((manager) => placeOrder(manager, 42))

// No order is stored and no message is sent.
const failed = new Error('no stock')
await database.transaction(async (manager) => {
  await placeOrder(manager, 43)
  throw failed
}).catch((error) => { if (error !== failed) throw error })
await database.destroy()
