// JDBC
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Properties;

public class Producer {
    public static void main(String[] args) throws Exception {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            placeOrder(connection, 42);
            connection.commit();

            placeOrder(connection, 43);
            connection.rollback(); // no order is stored and no message is sent
        }
    }

    static void placeOrder(Connection connection, int orderId) throws SQLException {
        try (var order = connection.prepareStatement("INSERT INTO orders (id, customer) VALUES (?, 'acme')")) {
            order.setInt(1, orderId);
            order.executeUpdate();
        }
        // ?::json, since JDBC sends strings as varchar. Or add stringtype=unspecified to the URL.
        try (var message = connection.prepareStatement("INSERT INTO outbox (routing_key, payload) VALUES (?, ?::json)")) {
            message.setString(1, "orders");
            message.setString(2, "{\"order_id\": " + orderId + ", \"customer\": \"acme\"}");
            message.executeUpdate();
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
