// consumer_nest.mjs COUNT: NestJS and node-postgres. In TypeScript, the calls below the class are decorators.
import 'reflect-metadata'
import { Controller, Module } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { Ctx, EventPattern, Payload, Transport } from '@nestjs/microservices'
import pg from 'pg'
import { once } from './once.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
let left = Number(process.argv[2])

class Orders {
  async created(order, context) {
    const message = context.getMessage()
    await once(pool, message.properties.messageId, (client) => client.query('INSERT INTO parcels (order_id) VALUES ($1)', [order.order_id]))
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
