package doctor_test

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestABrokerWithTLSIsExamined(t *testing.T) {
	t.Parallel()
	authority := certs.NewAuthority(t)
	authority.Issue("mq.example")
	ca, file, key := authority.File("ca.pem"), authority.File("mq.example.pem"), authority.File("mq.example.key")
	var ports [2]string
	for i := range ports {
		port, err := services.FreePort()
		must(t, err)
		ports[i] = strconv.Itoa(port)
	}
	broker, err := services.StartRabbitMQ(t.Context(), services.Options{
		Way: services.Local, Private: true, // a container could not read the files
		Settings: []string{
			"listeners.ssl.1 = 127.0.0.1:" + ports[0], "ssl_options.certfile = " + file, "ssl_options.keyfile = " + key,
			"management.ssl.port = " + ports[1], "management.ssl.certfile = " + file, "management.ssl.keyfile = " + key,
		},
	})
	services.Need(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Hang())
		defer cancel()
		if err := broker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	p := healthy(t, services.SharedPostgres(t))
	p.ManagementURL = "https://127.0.0.1:" + ports[1]
	at := func(query url.Values) {
		u := url.URL{Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: "127.0.0.1:" + ports[0], Path: "/", RawQuery: query.Encode()}
		p.RabbitMQ.Value = u.String()
	}
	at(nil)
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "server_name_indication=")
	at(url.Values{"server_name_indication": {"mq.example"}})
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "unknown authority", "?cacertfile=")
	at(url.Values{"cacertfile": {ca}, "server_name_indication": {"mq.example"}})
	r := p.examine()
	r.want(doctor.Warning, doctor.RabbitMQ, "tls", "TLS 1.3, certificate of mq.example", "m more", "renew")
	r.want(doctor.OK, doctor.RabbitMQ, "management", "https://")
	r.wantOthersOK("tls")
}

// The examination ends even if servers accept connections and never answer.
func TestSilentServersDoNotBlockTheExamination(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	proxied := func(address string) (string, *services.Proxy) {
		u, err := url.Parse(address)
		must(t, err)
		proxy := services.NewProxy(t, u.Host)
		return throughPort(t, address, proxy.Addr()), proxy
	}
	database, silentDatabase := proxied(p.url)
	broker, silentBroker := proxied(p.RabbitMQ.Value)
	api, silentAPI := proxied(p.ManagementURL)
	p.as(database)
	p.RabbitMQ.Value, p.ManagementURL = broker, api
	p.examine().wantOthersOK()

	p.SetTimeout(2 * time.Second)
	silentAPI.BlackHole(services.Downstream)
	p.insert("amq.topic", "k")
	p.examine().want(doctor.Warning, doctor.RabbitMQ, "management", "rabbitmq-plugins enable")
	silentDatabase.BlackHole(services.Downstream)
	silentBroker.BlackHole(services.Downstream)
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "reachable")
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable")
}
