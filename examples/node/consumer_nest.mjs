// consumer_nest.mjs COUNT: NestJS and node-postgres. In TypeScript, the calls below the class are decorators.
import 'reflect-metadata'
import { Controller, Module } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { Ctx, EventPattern, Payload, Transport } from '@nestjs/microservices'
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
let left = Number(process.argv[2])

class Orders {
  async created(order, context) {
    const message = context.getMessage()
    const client = await pool.connect()
    try {
      await client.query('BEGIN') // the inbox and the work commit together
      const { rowCount } = await client.query('INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING', [message.properties.messageId])
      if (rowCount === 1) await client.query('INSERT INTO parcels (order_id) VALUES ($1)', [order.order_id])
      await client.query('COMMIT')
    } catch (error) {
      await client.query('ROLLBACK')
      throw error
    } finally {
      client.release()
    }
    context.getChannelRef().ack(message) // after COMMIT: if it crashes before, the broker redelivers
    if (--left === 0) done()
  }
}
EventPattern('order_created')(Orders.prototype, 'created', Object.getOwnPropertyDescriptor(Orders.prototype, 'created'))
Payload()(Orders.prototype, 'created', 0)
Ctx()(Orders.prototype, 'created', 1)
Controller()(Orders)

class Shop {}
Module({ controllers: [Orders] })(Shop)

const app = await NestFactory.createMicroservice(Shop, {
  transport: Transport.RMQ,
  options: { urls: [process.env.AMQP_URL], queue: 'orders', queueOptions: { durable: true }, noAck: false },
  logger: ['warn', 'error'],
})
let done
const finished = new Promise((resolve) => (done = resolve))
await app.listen()
await finished
await app.close()
await pool.end()
