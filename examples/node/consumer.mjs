// consumer.mjs COUNT: amqplib and node-postgres
import amqp from 'amqplib'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })

async function handle(message) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN') // the inbox and the work commit together
    const { rowCount } = await client.query('INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING', [message.properties.messageId])
    if (rowCount === 1) {
      await client.query('INSERT INTO parcels (order_id) VALUES ($1)', [JSON.parse(message.content).order_id])
    }
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
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
