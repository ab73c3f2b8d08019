package services

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
)

func TestStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	if _, err := findPostgres(); err != nil {
		t.Skipf("this machine has no programs of Postgres: %v", err)
	}
	primary, err := StartPostgres(ctx, Options{Way: Local, Private: true})
	Need(t, err)
	closeAfter(t, primary.Close)
	must := func(server *Postgres, statements ...string) {
		t.Helper()
		if err := server.Exec(ctx, "", statements...); err != nil {
			t.Fatal(err)
		}
	}
	must(primary, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")
	standby, err := primary.StartStandby(ctx)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, standby.Close)
	must(primary, "INSERT INTO kept VALUES (2)")
	awaitRows(t, standby, 2)
	if err := primary.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	must(standby, "INSERT INTO kept VALUES (3)")
	awaitRows(t, standby, 3)

	if err := primary.Follow(ctx, standby); err != nil { // and back again
		t.Fatal(err)
	}
	must(standby, "INSERT INTO kept VALUES (4)")
	awaitRows(t, primary, 4)
	if err := standby.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := primary.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	must(primary, "INSERT INTO kept VALUES (5)")
}

func awaitRows(t *testing.T, server *Postgres, rows int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	conn, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for n := -1; n != rows; {
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM kept").Scan(&n); err != nil {
			t.Fatalf("want %d rows, got %d: %v", rows, n, err)
		}
	}
}
