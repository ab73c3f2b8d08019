package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The relay's role may not even plan a trap, so a statement that would run one fails, also on empty tables.
func TestStatementsRunNobodyElsesFunctions(t *testing.T) {
	f := tabletest.New(t)
	if _, err := migrations.MakeHistory(t.Context(), f.Conn, tabletest.Name()); err != nil {
		t.Fatal(err)
	}
	role := fmt.Sprintf("relay_%d", f.Conn.PgConn().PID())
	f.Exec(`CREATE ROLE ` + role)
	defer f.Exec(`DROP ROLE ` + role)
	defer f.Exec(`DROP OWNED BY ` + role)
	f.Exec(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + role)
	f.Exec(`GRANT EXECUTE ON FUNCTION outbox_rotate(interval) TO ` + role)
	f.Exec(`GRANT SELECT ON SEQUENCE outbox_id_seq TO ` + role)
	tabletest.PlantTraps(t, f.Conn)
	defer tabletest.Trapped(t, f.Conn)
	testStatements(t, f.URL+"&role="+role+"&search_path=evil,public,pg_catalog")
}

func testStatements(t *testing.T, url string) {
	headers := []string{"coalesce_key"}
	s, err := Open(pgdial.AddressOf(url, ""), Options{Table: tabletest.Name(), KeepPublished: time.Hour, HeaderColumns: headers})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, o := range []Options{{}, {Block: true, Shard: outbox.Shard{Index: 1, Of: 3}, KeepPublished: time.Hour, HeaderColumns: headers}} {
		o.Table = tabletest.Name()
		all := reflect.ValueOf(newStatements(o))
		for i := range all.NumField() {
			explain(t, conn.Conn(), all.Type().Field(i).Name, all.Field(i).String())
		}
	}
	_, errSample := s.Sample(t.Context(), "none", nil)
	_, errSnapshot := s.Snapshot(t.Context(), true)
	_, errPosition := s.Position(t.Context())
	_, _, errLast := s.LastID(t.Context())
	_, errRotate := s.RotatePublished(t.Context(), 0)
	for what, err := range map[string]error{
		"check": s.Check(t.Context()), "retention": s.CheckDeletesDeadLetters(t.Context()), "sample": errSample, "snapshot": errSnapshot,
		"position": errPosition, "last id": errLast, "rotate": errRotate,
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	explain(t, conn.Conn(), "extras", schema.ExtrasSQL)
}

// explain plans a statement without running it, as a relay does it: with the parameters' own types.
func explain(t *testing.T, conn *pgx.Conn, name, sql string) {
	t.Helper()
	sql = strings.NewReplacer("{extra_columns}", "", "{extra_names}", "", "{extra_values}", "").Replace(sql)
	described, err := conn.Prepare(t.Context(), "", sql)
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, sql)
		return
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(described.ParamOIDs)), ", ")
	if nulls != "" {
		nulls = "(" + nulls + ")"
	}
	for _, step := range []string{"PREPARE one AS " + sql, "EXPLAIN EXECUTE one" + nulls, "DEALLOCATE one"} {
		if _, err := conn.Exec(t.Context(), step, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%s: %v\n%s", name, err, sql)
		}
	}
}

func TestSweepsReadTheColumnsOfAMessage(t *testing.T) {
	var read []string
	for _, c := range new(Scanner).columns() {
		read = append(read, c.name)
	}
	if want := schema.Read(); !slices.Equal(slices.Sorted(slices.Values(read)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%q are read, want %q", read, want)
	}
}
