// Spring JDBC. In a Spring Boot application, JdbcTemplate is injected and the method is @Transactional.
import java.net.URI;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.support.TransactionTemplate;

public class SpringProducer {
    public static void main(String[] args) throws Exception {
        var source = connect();
        var jdbc = new JdbcTemplate(source);
        var transaction = new TransactionTemplate(new DataSourceTransactionManager(source));
        transaction.execute(status -> {
            placeOrder(jdbc, 42);
            return null;
        });

        transaction.execute(status -> {
            placeOrder(jdbc, 43);
            status.setRollbackOnly(); // no order is stored and no message is sent
            return null;
        });
    }

    static void placeOrder(JdbcTemplate jdbc, int orderId) {
        jdbc.update("INSERT INTO orders (id, customer) VALUES (?, 'acme')", orderId);
        // ?::json, since JDBC sends strings as varchar. Or add stringtype=unspecified to the URL.
        jdbc.update("INSERT INTO outbox (routing_key, payload) VALUES (?, ?::json)",
            "orders", "{\"order_id\": " + orderId + ", \"customer\": \"acme\"}");
    }

    static DriverManagerDataSource connect() throws Exception {
        URI url = new URI(System.getenv("DATABASE_URL"));
        String[] user = url.getUserInfo().split(":", 2);
        return new DriverManagerDataSource("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath(),
            user[0], user.length > 1 ? user[1] : "");
    }
}
