package services

import (
	"errors"
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
