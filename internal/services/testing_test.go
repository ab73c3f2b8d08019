package services

import (
	"errors"
	"testing"
)

// TestServersCanBeHad fails in place of all tests that were skipped because there is no server, here and in other packages:
// go test shows nothing of what a test says that passes or is skipped.
func TestServersCanBeHad(t *testing.T) {
	_, postgres := sharedPostgres()
	_, rabbitmq := sharedRabbitMQ()
	if err := errors.Join(postgres, rabbitmq); errors.Is(err, errUnavailable) && !serversNamed() {
		t.Fatal("Postgres and RabbitMQ are missing here: every test that needs them was skipped, in all packages. " +
			"./scripts/test says how to install them, and runs everything (CONTRIBUTING.md)")
	}
}
