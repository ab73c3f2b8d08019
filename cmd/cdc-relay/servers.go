package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

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
			all = append(all, "amqp-url-file")
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
			return usagef("--amqp-url: cacertfile: %s", err)
		}
	}
	if (cert == "") != (key == "") {
		return usagef("--amqp-url: certfile and keyfile: want both or none")
	}
	if cert == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return usagef("--amqp-url: certfile=%s, keyfile=%s: %s", cert, key, err)
	}
	return nil
}
