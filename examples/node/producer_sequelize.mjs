// Sequelize. `returning: false`: INSERT … RETURNING would need SELECT on all mapped columns.
import { DataTypes, Sequelize } from 'sequelize'

const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false })
const Order = sequelize.define('Order', {
  id: { type: DataTypes.INTEGER, primaryKey: true },
  customer: DataTypes.TEXT,
}, { tableName: 'orders', timestamps: false })
const Outbox = sequelize.define('Outbox', {
  message_id: { type: DataTypes.UUID, primaryKey: true, defaultValue: DataTypes.UUIDV4 },
  routing_key: DataTypes.TEXT,
  payload: DataTypes.JSON,
}, { tableName: 'outbox', timestamps: false })

async function placeOrder(transaction, orderId) {
  await Order.create({ id: orderId, customer: 'acme' }, { transaction })
  await Outbox.create({ routing_key: 'orders', payload: { order_id: orderId, customer: 'acme' } }, { transaction, returning: false })
}

await sequelize.transaction((t) => placeOrder(t, 42))

// No order is stored and no message is sent.
const failed = new Error('no stock')
await sequelize.transaction(async (t) => {
  await placeOrder(t, 43)
  throw failed
}).catch((error) => { if (error !== failed) throw error })
await sequelize.close()
