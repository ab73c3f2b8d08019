// consumer.mjs COUNT: amqplib and node-postgres
import amqp from 'amqplib'
import pg from 'pg'
import { once } from './once.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })

function handle(message) {
  const { order_id } = JSON.parse(message.content)
  return once(pool, message.properties.messageId, (client) => client.query('INSERT INTO parcels (order_id) VALUES ($1)', [order_id]))
}

const connection = await amqp.connect(process.env.AMQP_URL)
const channel = await connection.createChannel()
await channel.assertQueue('orders', { durable: true })
await channel.prefetch(10)
let left = Number(process.argv[2])
await new Promise((resolve, reject) => {
  channel.consume('orders', (message) => {
    handle(message).then(() => {
      channel.ack(message) // after COMMIT: if it crashes before, the broker redelivers
      if (--left === 0) resolve()
    }, reject)
  })
})
await channel.close()
await connection.close()
await pool.end()
