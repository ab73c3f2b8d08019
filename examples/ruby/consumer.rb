# consumer.rb COUNT: Bunny and pg
require 'bunny'
require 'json'
require 'pg'

database = PG.connect(ENV.fetch('DATABASE_URL'))
broker = Bunny.new(ENV.fetch('AMQP_URL')).start
channel = broker.create_channel
channel.prefetch(10)
handled = Queue.new
channel.on_uncaught_exception { |error, _| handled << error } # else Bunny logs it, and goes on without an ack

channel.queue('orders', durable: true).subscribe(manual_ack: true) do |delivery, properties, body|
  database.transaction do # the inbox and the work commit together
    inbox = database.exec_params('INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING', [properties.message_id])
    if inbox.cmd_tuples == 1
      database.exec_params('INSERT INTO parcels (order_id) VALUES ($1)', [JSON.parse(body)['order_id']])
    end
  end
  channel.ack(delivery.delivery_tag) # after COMMIT: if it crashes before, the broker redelivers
  handled << properties.message_id
end
ARGV.fetch(0).to_i.times do
  result = handled.pop
  raise result if result.is_a?(Exception) # the broker redelivers
end
broker.close
