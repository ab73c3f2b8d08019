# ActiveRecord
require 'active_record'

ActiveRecord::Base.establish_connection(ENV.fetch('DATABASE_URL'))

class Order < ActiveRecord::Base; end

class Outbox < ActiveRecord::Base
  self.table_name = 'outbox'

  # insert_all! with returning: false: save would send INSERT … RETURNING id, which needs SELECT (id).
  def self.enqueue(routing_key, payload)
    insert_all!([{ routing_key: routing_key, payload: payload }], returning: false)
  end
end

def place_order(id)
  Order.create!(id: id, customer: 'acme')
  Outbox.enqueue('orders', { order_id: id, customer: 'acme' })
end

ActiveRecord::Base.transaction { place_order(42) }

ActiveRecord::Base.transaction do
  place_order(43)
  raise ActiveRecord::Rollback # no order is stored and no message is sent
end
