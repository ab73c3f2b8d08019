// Package services provides the Postgres and RabbitMQ servers that tests, the demo and benchmarks run against.
//
// Servers come from the first of three ways that works, or from the one that CDC_RELAY_SERVICES names:
//
//   - environment: CDC_RELAY_DATABASE_URL and CDC_RELAY_AMQP_URL give the addresses of servers that run already.
//   - containers: a Docker engine answers, and has the image or can pull it.
//   - local: private servers started from the machine's own binaries, on free loopback ports, with their data in a
//     temporary folder, below CDC_RELAY_SERVICES_DIR if that is set. If the process is root on Debian or Ubuntu, it
//     installs missing binaries with apt-get.
//
// Tests take their own database and virtual host from servers that their process shares ([Database], [VHost]), or
// a local server that they may stop, kill and configure ([PrivatePostgres], [PrivateRabbitMQ]). A package that uses any
// of these has a TestMain that calls [Main].
package services
