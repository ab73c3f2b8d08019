package main

import (
	"fmt"

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
		if _, err := node.TLS(nil); err != nil {
			return usagef("--amqp-url: %s", err)
		}
	}
	return nil
}
