package services

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// Fails in place of all tests, here and in other packages, that were skipped because there is no server: go test hides
// the messages of skipped tests.
func TestServersAreAvailable(t *testing.T) {
	_, postgres := sharedPostgres()
	_, rabbitmq := sharedRabbitMQ()
	if err := errors.Join(postgres, rabbitmq); errors.Is(err, errUnavailable) && (!serversNamed() || os.Getenv(EnvWay) == string(Containers)) {
		t.Fatal("Postgres and RabbitMQ are missing here: every test that needs them was skipped, in all packages. " +
			"./scripts/test says how to install them, and runs everything (CONTRIBUTING.md)")
	}
}

func TestABrokenServerIsNotSkipped(t *testing.T) {
	t.Setenv(EnvWay, "")
	t.Setenv(EnvState, "")
	t.Setenv(EnvPostgresBin, "")
	t.Setenv(EnvDatabase, "postgres://user:secret@%zz")
	_, err := StartPostgres(t.Context(), Options{})
	if err == nil || errors.Is(err, errUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v: expected one about the address, without its password", err)
	}
}

// Otherwise a failed test would pass.
func TestRunReturnsTheExitCode(t *testing.T) {
	t.Setenv(EnvWay, string(Environment))
	t.Setenv(EnvDatabase, SharedPostgres(t).URL(""))
	t.Setenv(EnvAMQP, SharedRabbitMQ(t).URL(""))
	for command, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 137} {
		if code, err := Run(context.Background(), Options{}, "sh", "-c", command); code != want || err != nil {
			t.Errorf("%s: exit code %d, %v: expected %d", command, code, err, want)
		}
	}
}
