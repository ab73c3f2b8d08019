// Consumer COUNT: RabbitMQ's Java client and JDBC
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Consumer {
    static final Pattern ORDER_ID = Pattern.compile("\"order_id\"\\s*:\\s*(\\d+)"); // a JSON library in real code

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        AtomicInteger left = new AtomicInteger(Integer.parseInt(args[0]));
        CompletableFuture<Void> done = new CompletableFuture<>();
        try (var broker = factory.newConnection(); Channel channel = broker.createChannel(); Connection database = connect()) {
            database.setAutoCommit(false);
            channel.queueDeclare("orders", true, false, false, null);
            channel.basicQos(10);
            channel.basicConsume("orders", false, new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                    if (done.isDone()) {
                        return; // the broker redelivers it
                    }
                    try {
                        handle(database, properties.getMessageId(), new String(body, StandardCharsets.UTF_8));
                        channel.basicAck(envelope.getDeliveryTag(), false); // after COMMIT: if it crashes before, the broker redelivers
                    } catch (Exception e) {
                        done.completeExceptionally(e); // ends the program, and the broker redelivers
                        return;
                    }
                    if (left.decrementAndGet() == 0) {
                        done.complete(null);
                    }
                }
            });
            done.get();
        }
    }

    static void handle(Connection database, String messageId, String body) throws SQLException {
        try (var inbox = database.prepareStatement("INSERT INTO inbox (message_id) VALUES (?::uuid) ON CONFLICT DO NOTHING");
                var parcel = database.prepareStatement("INSERT INTO parcels (order_id) VALUES (?)")) {
            inbox.setString(1, messageId);
            if (inbox.executeUpdate() == 1) {
                Matcher order = ORDER_ID.matcher(body);
                order.find();
                parcel.setInt(1, Integer.parseInt(order.group(1)));
                parcel.executeUpdate();
            }
            database.commit(); // the inbox and the work commit together
        } catch (SQLException | RuntimeException e) {
            database.rollback();
            throw e;
        }
    }

    static Connection connect() throws Exception {
        URI url = new URI(System.getenv("DATABASE_URL"));
        String[] user = url.getUserInfo().split(":", 2);
        Properties properties = new Properties();
        properties.setProperty("user", user[0]);
        properties.setProperty("password", user.length > 1 ? user[1] : "");
        return DriverManager.getConnection("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath(), properties);
    }
}
