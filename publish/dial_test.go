package publish

import (
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestURLErrorsHaveNoPassword(t *testing.T) {
	for _, url := range []string{
		"amqp://user:pa ss@host/", "amqp://user:hidden/word@host/", "amqp://user:12/hidden@host/", "amqp://user:hidden%zz@host/",
		"amqp://user:hidden#x@host/", "http://user:hidden@host/", "amqp://user:hidden@host:notaport/", "",
	} {
		_, err := NewAMQP(AMQPConfig{URL: url})
		if err == nil {
			t.Errorf("%s is accepted", url)
			continue
		}
		for _, part := range []string{"hidden", "pa ss"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error quotes the password: %v", url, err)
			}
		}
	}
	for _, url := range []string{
		"amqp://localhost", "amqps://u:p%40ss@host:5671/v%2Fhost", "amqp://u@host/a@host", "amqp://[::1]:5672/", "amqp://u:p@[::1]/v@x",
	} {
		if _, err := NewAMQP(AMQPConfig{URL: url}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTheURLForTheLibraryDiffersOnlyInTLS(t *testing.T) {
	for _, url := range []string{
		"amqps://localhost", "amqp://localhost", "amqps://u:p%40ss%2F@host:1234/v%2Fhost", "amqps://u@[::1]/", "amqps://[fe80::1%25eth0]",
		"amqps:///v", "amqps:////v", "amqps:", "amqps://:@host", "amqps://guest:x@host/%20#fragment", "amqps://user:guest@host//v",
		"amqps://host?heartbeat=7&channel_max=9&auth_mechanism=external&auth_mechanism=plain&connection_timeout=5&certfile=%2Fa%20b&keyfile=k&cacertfile=c&server_name_indication=n",
	} {
		p, err := NewAMQP(AMQPConfig{URL: url})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		got, err := amqp.ParseURI(p.urlAboveTLS())
		want := p.uri
		want.Scheme, got.Vhost = "amqp", p.clientConfig().Vhost // this one counts
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v\nwant %+v", url, got, err, want)
		}
	}
}
