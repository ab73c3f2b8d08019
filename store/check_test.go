package store_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func (f *fixture) role(grants ...string) (address string) {
	f.Helper()
	name, address := f.Role("")
	for _, grant := range grants {
		f.Exec(grant + ` TO ` + name)
	}
	return address
}

func TestAnUnreachableDatabaseIsNotReportedAsAProblem(t *testing.T) {
	proxy := services.NewProxy(t, services.SharedPostgres(t).Addr())
	proxy.Refuse()
	url := "postgres://postgres:postgres@" + proxy.Addr() + "/postgres?sslmode=disable"
	s := open(t, url, store.Options{Table: tabletest.Name()})
	if err := s.Check(t.Context()); err == nil || problem.Is(err) {
		t.Errorf("err = %v", err)
	}
}

func TestErrorsDoNotContainThePassword(t *testing.T) {
	_, err := store.Open(pgdial.AddressOf("postgres://user:topsecret@127.0.0.1:notaport/db", ""), store.Options{Table: tabletest.Name()})
	if err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
	s := open(t, "postgres://user:topsecret@127.0.0.1:1/db?sslmode=disable", store.Options{Table: tabletest.Name()})
	if _, _, err := s.LastID(t.Context()); err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("err = %v", err)
	}
}
