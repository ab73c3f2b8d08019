package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func amqpFileSettings() []setting {
	return []setting{
		settings.SecretFile("amqp-url", func(c *config, file string) { c.rabbitmq.File = file }),
		{
			Info: settings.Info{
				Name: "amqp-ca-file", Placeholder: "FILE",
				Usage: "With amqps://: CA certificates (PEM) to trust instead of the system's.",
			},
			Set: func(c *config, text string) error { c.rabbitmq.CAFile = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "amqp-cert-file", Placeholder: "FILE",
				Usage: "With amqps://: the client certificate (PEM), if RabbitMQ asks for one.",
			},
			Set: func(c *config, text string) error { c.rabbitmq.CertFile = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "amqp-key-file", Placeholder: "FILE", Private: true,
				Usage: "With amqps://: the key (PEM) of --amqp-cert-file.",
			},
			Set: func(c *config, text string) error { c.rabbitmq.KeyFile = text; return nil },
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

func checkDatabaseURL(text string) error {
	_, err := pgdial.Parse(text)
	return err
}

func checkAMQPURL(text string) error {
	_, err := amqpdial.Parse(text)
	return err
}

// checkName checks the length of an exchange or a routing key.
func checkName(text string) error {
	if len(text) > outbox.LongestName {
		return fmt.Errorf("want at most %d bytes, not %d", outbox.LongestName, len(text))
	}
	return nil
}

// checkCertificates reports at the start what would otherwise fail at each connection.
func (c *config) checkCertificates() error {
	text, err := c.rabbitmq.Read()
	if err != nil || checkAMQPURL(text) != nil {
		return nil // the setting reports it
	}
	nodes, err := c.rabbitmq.Nodes()
	if err != nil {
		return usagef("%s", err)
	}
	for _, node := range nodes {
		if err := checkCertificates(node.URI.CACertFile, node.URI.CertFile, node.URI.KeyFile); err != nil {
			return err
		}
	}
	return nil
}

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
