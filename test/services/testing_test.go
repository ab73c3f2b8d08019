package services

import (
	"errors"
	"testing"
)

// Fails in place of all tests, here and in other packages, that were skipped because there is no server: go test hides
// the messages of skipped tests.
func TestServersAreAvailable(t *testing.T) {
	_, postgres := sharedPostgres()
	_, rabbitmq := sharedRabbitMQ()
	if err := errors.Join(postgres, rabbitmq); errors.Is(err, errUnavailable) && !serversNamed() {
		t.Fatal("Postgres and RabbitMQ are missing here: every test that needs them was skipped, in all packages. " +
			"./scripts/test says how to install them, and runs everything (CONTRIBUTING.md)")
	}
}
