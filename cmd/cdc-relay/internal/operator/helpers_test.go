package operator_test

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

type fixture struct{ *tabletest.Tables }

func newFixture(t *testing.T) *fixture { return &fixture{tabletest.New(t)} }

// operator opens a connection of its own.
func (f *fixture) operator() *operator.Tables {
	f.Helper()
	o, err := operator.New(f.Context(), tabletest.Connect(f, f.URL), tabletest.Name())
	must(f, err)
	return o
}

func (f *fixture) requeue(filter operator.Filter, batch int) operator.Changed {
	f.Helper()
	done, err := f.operator().Change(f.Context(), operator.Change{Do: operator.Requeue, Filter: filter, Batch: batch}, nil, quiet)
	must(f, err)
	return done
}

// store returns a relay's store on the tables.
func (f *fixture) store() *store.Store {
	f.Helper()
	s, err := store.Open(pgdial.AddressOf(f.URL, ""), store.Options{Table: tabletest.Name()})
	must(f, err)
	f.Cleanup(s.Close)
	return s
}

// lock locks rows in a session of its own, until the test ends.
func (f *fixture) lock(sql string) {
	f.Helper()
	tabletest.Begin(f, tabletest.Connect(f, f.URL), sql)
}

// claimed returns all rows that a relay can claim now, in its order.
func (f *fixture) claimed() []*outbox.Message {
	f.Helper()
	claim, err := f.store().Lock(f.Context(), f.IDs("true"), outbox.AllFresh(), "")
	must(f, err)
	defer claim.Abandon()
	return claim.Messages
}

func name(t testing.TB, text string) operator.Name {
	t.Helper()
	n, err := operator.ParseName(text)
	must(t, err)
	return n
}

func quiet(int64, int64) {}

func text(s string) *string { return &s }

func pattern(s string) *operator.Pattern {
	p, err := operator.ParsePattern(s)
	if err != nil {
		panic(err)
	}
	return &p
}

func equal[T any](t testing.TB, what string, got, want []T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
