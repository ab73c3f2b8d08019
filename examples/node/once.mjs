// once does the work of a message in a transaction, unless a message with this id was handled before. It returns
// whether it did. Acknowledge the message afterwards: if the consumer crashes before, the broker redelivers.
export async function once(pool, messageId, work) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN') // the inbox and the work commit together
    const { rowCount } = await client.query('INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING', [messageId])
    if (rowCount === 1) await work(client)
    await client.query('COMMIT')
    return rowCount === 1
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}
