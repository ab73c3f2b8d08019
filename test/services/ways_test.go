package services

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWaysAreTriedInOrder(t *testing.T) {
	for name, test := range map[string]struct {
		way, state string
		opts       Options
		want       []Way
	}{
		"nothing said":             {want: []Way{Environment, Containers, Local}},
		"private":                  {opts: Options{Private: true}, want: []Way{Containers, Local}},
		"one way":                  {way: "local", want: []Way{Local}},
		"private in one way":       {way: "local", opts: Options{Private: true}, want: []Way{Local}},
		"private beside given":     {way: "environment", opts: Options{Private: true}, want: []Way{Containers, Local}},
		"shared by a parent":       {way: "containers", state: "file", want: []Way{Environment}},
		"private below a parent":   {way: "containers", state: "file", opts: Options{Private: true}, want: []Way{Containers}},
		"options before variables": {way: "containers", opts: Options{Way: Local}, want: []Way{Local}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvWay, test.way)
			t.Setenv(EnvState, test.state)
			if got, err := order(test.opts); err != nil || !slices.Equal(got, test.want) {
				t.Errorf("order %v, %v: expected %v", got, err, test.want)
			}
		})
	}
}

func TestAnUnknownWayIsAnError(t *testing.T) {
	t.Setenv(EnvWay, "podman")
	t.Setenv(EnvState, "")
	if _, err := order(Options{}); err == nil || !strings.Contains(err.Error(), `CDC_RELAY_SERVICES is "podman"`) {
		t.Errorf("error %v", err)
	}
}

func TestNamedProgramsOfPostgresAreUsed(t *testing.T) {
	bin, err := findPostgres()
	if err != nil {
		t.Skipf("this machine has no programs of Postgres: %v", err)
	}
	t.Setenv(EnvWay, "")
	t.Setenv(EnvState, "")
	t.Setenv(EnvDatabase, "postgres://user@127.0.0.1:1/not_this_one")
	t.Setenv(EnvPostgresBin, bin)
	server, err := StartPostgres(t.Context(), Options{})
	if err != nil || server.Way != Local {
		t.Fatalf("server %v, %v", server, err)
	}
	closeAfter(t, server.Close)
	t.Setenv(EnvPostgresBin, t.TempDir())
	if _, err := StartPostgres(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), EnvPostgresBin) {
		t.Errorf("a folder without programs: %v", err)
	}
}

func TestMissingServersAreAnErrorWithAnInstallCommand(t *testing.T) {
	t.Setenv(EnvWay, "")
	t.Setenv(EnvState, "")
	t.Setenv(EnvDatabase, "")
	noEngine := func(context.Context, Options) (*Postgres, error) {
		return nil, fmt.Errorf("no Docker engine answers: %w", errUnavailable)
	}
	missing := func(context.Context, Options) (*Postgres, error) {
		return nil, &missingError{server: "Postgres", packages: "postgresql", formula: "postgresql@17"}
	}
	_, err := provide(t.Context(), Options{}, map[Way]provider[*Postgres]{
		Environment: givenPostgres, Containers: noEngine, Local: missing,
	})
	for _, part := range []string{
		"CDC_RELAY_DATABASE_URL is not set", "no Docker engine answers",
		"apt-get install", "brew install postgresql@17", "export CDC_RELAY_DATABASE_URL=",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
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

func TestGivenServersAreUsedAndNotStopped(t *testing.T) {
	postgres, rabbitmq := SharedPostgres(t), SharedRabbitMQ(t)
	file := filepath.Join(t.TempDir(), "state.json")
	if err := rabbitmq.WriteState(file); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvDatabase, postgres.URL(""))
	t.Setenv(EnvAMQP, rabbitmq.URL(""))
	t.Setenv(EnvState, file)
	ctx := t.Context()
	given, err := StartPostgres(ctx, Options{})
	if err != nil || given.Way != Environment {
		t.Fatalf("way %v, %v", given, err)
	}
	if err := given.Stop(ctx, Fast); !errors.Is(err, errNotOurs) {
		t.Errorf("stopping a given server: %v", err)
	}
	broker, err := StartRabbitMQ(ctx, Options{})
	if err != nil || broker.Way != Environment {
		t.Fatalf("way %v, %v", broker, err)
	}
	if rabbitmq.CanCtl() {
		if output, err := broker.Ctl(ctx, "list_vhosts"); err != nil {
			t.Errorf("rabbitmqctl by the state file: %v: %s", err, output)
		}
	}
	if err := errors.Join(given.Close(ctx), broker.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(postgres.connect(ctx), rabbitmq.connect(ctx)); err != nil {
		t.Errorf("the servers are gone: %v", err)
	}
}
