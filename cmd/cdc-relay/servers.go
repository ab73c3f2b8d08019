package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// certificateFiles are the files with certificates for RabbitMQ.
type certificateFiles struct{ ca, cert, key string }

func amqpFileSettings() []setting {
	return []setting{
		settings.SecretFile[config]("amqp-url"),
		{
			Info: settings.Info{
				Name: "amqp-ca-file", Placeholder: "FILE",
				Usage: "With amqps://: CA certificates (PEM) to trust instead of the system's.",
			},
			Set: func(c *config, text string) error { c.certificates.ca = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "amqp-cert-file", Placeholder: "FILE",
				Usage: "With amqps://: the client certificate (PEM), if RabbitMQ asks for one.",
			},
			Set: func(c *config, text string) error { c.certificates.cert = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "amqp-key-file", Placeholder: "FILE", Private: true,
				Usage: "With amqps://: the key (PEM) of --amqp-cert-file.",
			},
			Set: func(c *config, text string) error { c.certificates.key = text; return nil },
		},
	}
}

// withRelated adds the flags that set the same value in another way.
func withRelated(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, name)
		switch name {
		case "database-url":
			all = append(all, "database-url-file")
		case "format":
			all = append(all, jsonSetting().Name)
		case "amqp-url":
			for _, s := range amqpFileSettings() {
				all = append(all, s.Name)
			}
		}
	}
	return all
}

const (
	encodeHint      = "characters such as @ : / ? # % in the user name or password must be percent-encoded"
	wantDatabaseURL = "not a URL of the form postgres://user:password@host:5432/database; " + encodeHint
)

// checkDatabaseURL never quotes the URL: what a parser takes for a port may be a part of the password.
func checkDatabaseURL(text string) error {
	if text == "" {
		return errors.New("is empty")
	}
	if atAfterHost(text) {
		return errors.New(wantDatabaseURL)
	}
	cfg, err := pgconn.ParseConfig(text) // as the stream does: pgx would take parameters of its own out
	var parseErr *pgconn.ParseConfigError
	var urlErr *url.Error
	switch {
	case err == nil && strings.Contains(text, "://") && strings.LastIndex(cfg.Host, "@") > 0:
		// A password contains an @ that is not encoded: the parser took its end for the host.
		return errors.New(wantDatabaseURL)
	case err == nil:
		return pgdial.CheckParameters(cfg)
	case errors.As(err, &urlErr) || strings.Contains(text, "://"):
		if detail := harmlessDetail(err); detail != "" {
			return errors.New(detail)
		}
		return errors.New(wantDatabaseURL)
	case errors.As(err, &parseErr):
		return errors.New("neither a URL, postgres://user:password@host:5432/database, nor key=value words")
	}
	return errors.New("not understood")
}

// atAfterHost reports an @ after the host. A / ? or # in a password ends the host for a parser, and the rest of the
// password then precedes an @. A literal @ there can be written as %40.
func atAfterHost(text string) bool {
	_, rest, isURL := strings.Cut(text, "://")
	end := strings.IndexAny(rest, "/?#")
	return isURL && end >= 0 && strings.Contains(rest[end:], "@")
}

// harmlessDetail names the parameter that a parser rejected, if it cannot contain a password. The error of pgconn
// quotes the URL before it says what is wrong.
func harmlessDetail(err error) string {
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:]
	for _, part := range [][2]string{
		{"CA file", "sslrootcert"},
		{"CA to cert pool", "sslrootcert"},
		{"sslrootcert", "sslrootcert"},
		{"sslkey", "sslkey"},
		{"cert", "sslcert"},
		{"sslmode", "sslmode"},
		{"target_session_attrs", "target_session_attrs"},
		{"connect_timeout", "connect_timeout"},
	} {
		if strings.Contains(text, part[0]) {
			return "wrong value for " + part[1]
		}
	}
	return ""
}

func checkAMQPURL(text string) error {
	scheme, _, found := strings.Cut(text, "://")
	if !found || (scheme != "amqp" && scheme != "amqps") {
		return errors.New("want a URL that begins with amqp:// or amqps://")
	}
	if _, err := amqp.ParseURI(text); err != nil || atAfterHost(text) {
		return errors.New("not a URL of the form " + scheme + "://user:password@host:5672/vhost; " + encodeHint)
	}
	return checkAMQPParameters(text)
}

// checkAMQPParameters rejects parameters that the library does not read: it ignores them.
func checkAMQPParameters(text string) error {
	known := []string{
		"cacertfile", "certfile", "channel_max", "connection_timeout", "heartbeat", "keyfile", "server_name_indication",
	}
	address, err := url.Parse(text)
	if err != nil {
		return errors.New("not a URL") // parsed before
	}
	for _, name := range slices.Sorted(maps.Keys(address.Query())) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("parameter %s is unknown; known are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// checkName checks the length of an exchange or a routing key.
func checkName(text string) error {
	if len(text) > outbox.LongestName {
		return fmt.Errorf("want at most %d bytes, not %d", outbox.LongestName, len(text))
	}
	return nil
}

// addCertificates puts the names of the files into the AMQP URL. Each connection then reads them again, so a renewed
// certificate is used from the next connection on.
func (c *config) addCertificates() error {
	parameters := []struct{ name, parameter, file string }{
		{"--amqp-ca-file", "cacertfile", c.certificates.ca},
		{"--amqp-cert-file", "certfile", c.certificates.cert},
		{"--amqp-key-file", "keyfile", c.certificates.key},
	}
	if checkAMQPURL(c.amqpURL) != nil || c.certificates.ca+c.certificates.cert+c.certificates.key == "" {
		return nil
	}
	u, err := url.Parse(c.amqpURL)
	if err != nil {
		return usagef("--amqp-url: not understood") // validated before
	}
	query := u.Query()
	for _, p := range parameters {
		switch {
		case p.file == "":
		case u.Scheme != "amqps":
			return usagef("%s needs a URL that begins with amqps:// in --amqp-url", p.name)
		case query.Has(p.parameter):
			return usagef("%s and %s in --amqp-url are both given, want one", p.name, p.parameter)
		default:
			query.Set(p.parameter, p.file)
		}
	}
	if err := checkCertificates(query.Get("cacertfile"), query.Get("certfile"), query.Get("keyfile")); err != nil {
		return err
	}
	u.RawQuery = query.Encode()
	c.amqpURL = u.String()
	return nil
}

// checkCertificates reports at the start what would otherwise fail at each connection.
func checkCertificates(ca, cert, key string) error {
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(bytes.TrimSpace(text)) {
			err = fmt.Errorf("%s: holds no certificate in PEM form", ca)
		}
		if err != nil {
			return usagef("--amqp-ca-file: %s", err)
		}
	}
	if (cert == "") != (key == "") {
		return usagef("--amqp-cert-file and --amqp-key-file: want both or none")
	}
	if cert == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return usagef("--amqp-cert-file %s, --amqp-key-file %s: %s", cert, key, err)
	}
	return nil
}
