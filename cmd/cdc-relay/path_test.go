package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// Postgres prefers a function in another schema if its parameters match better. Without parameters, none matches better
// than that of pg_catalog. unnest of several arrays and functions with words between the arguments are part of the grammar.
func TestSQLNamesTheSchemaOfFunctions(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	var names []string
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(DISTINCT proname) FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
		AND proname !~ '^(text|name|char|date|time|timestamp|interval|numeric|bit|version|int[248]|substring|extract|overlay|position|json|jsonb|bool)$'`).Scan(&names); err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`(?:^|[^\w.$-])(` + strings.Join(names, "|") + `)\(([^)*]|\*[^)]|$)`)
	severalArrays := regexp.MustCompile(`unnest\(\$\d::\w+\[\], `)
	for _, folder := range []string{
		"store", "internal/slot", "internal/pgdial", "replication", "outbox", "relay",
		"cmd/cdc-relay", "cmd/cdc-relay/internal/operator", "cmd/cdc-relay/internal/demo",
	} {
		files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		must(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for line, text := range stringsOf(t, file) {
				for _, found := range call.FindAllString(severalArrays.ReplaceAllString(text, ""), -1) {
					printed := strings.Contains(text, "COALESCE(hashtextextended((ordering_key COLLATE") // by the server
					if sqlWords.MatchString(text) && !printed {
						t.Errorf("%s:%d: %q without pg_catalog", file, line, found)
					}
				}
			}
		}
	}
}

// Everything from setup to teardown, as a superuser: what a trap runs, it runs with all rights.
func TestCommandsOfASuperuserRunNobodyElsesFunctions(t *testing.T) {
	services.Thorough(t, "plants thousands of functions")
	for _, path := range []string{"", "&search_path=evil,public,pg_catalog"} {
		env, conn := fresh(t)
		tabletest.PlantTraps(t, conn)
		execute(t, conn, `SET search_path = pg_catalog, public`)
		execute(t, conn, `CREATE TABLE public.events (id bigserial PRIMARY KEY, topic text, body text)`)
		execute(t, conn, `INSERT INTO events (topic, body) VALUES ('a', '1'), ('a', '2')`)
		env["CDC_RELAY_DATABASE_URL"] += path
		env["CDC_RELAY_PUBLISHER"] = "stdout"
		printed := cdcRelay(t, env, "setup", "--functions", "--keep-published", "24h", "--print-sql")
		if psql, err := exec.LookPath("psql"); err == nil {
			cmd := exec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", "-d", strings.TrimSuffix(env["CDC_RELAY_DATABASE_URL"], path))
			cmd.Stdin = strings.NewReader(printed.stdout)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("psql: %v\n%s", err, out)
			}
		}
		for _, args := range [][]string{
			{"setup", "--tables-only"},
			{"setup", "--functions", "--keep-published", "24h", "--app-role", "postgres"},
			{"setup"},
			{"adopt", "--from", "events", "--map", "routing_key=topic,payload=body", "--waiting", "all"},
			{"check", "--fix", "--yes", "--keep-published", "24h", "--app-role", "postgres"},
			{"stats"},
			{"list"},
			{"list", "--state", "blocked", "--payload"},
			{"keys"},
			{"explain", "1"},
		} {
			if r := cdcRelay(t, env, args...); r.code != exitDone {
				t.Errorf("%s: %+v", args, r)
			}
		}
		running := start(t, env, "run", "--keep-published", "24h", "--exchange", "none")
		execute(t, conn, `SELECT outbox_enqueue('orders', '{"n": 1}', ordering_key => 'k'), outbox_celery('task')`)
		execute(t, conn, `INSERT INTO events (topic, body) VALUES ('b', '3')`)
		await.Until(t, "five rows are published", func() bool { return query[bool](t, conn, `SELECT count(*) = 5 FROM outbox_published`) })
		running.stopsWell(t)
		for _, args := range [][]string{
			{"list", "--state", "published"}, {"resend", "--state", "published", "--all", "--yes"}, {"drain"}, {"list", "--state", "dead"}, {"adopt", "--undo"}, {"teardown", "--yes", "--tables"},
		} {
			if r := cdcRelay(t, env, args...); r.code != exitDone {
				t.Errorf("%s: %+v", args, r)
			}
		}
		tabletest.Trapped(t, conn)
	}
}

// sqlWords tell SQL from other texts.
var sqlWords = regexp.MustCompile(`^\w+\(|\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|AND|OR|CASE|coalesce|IN|ANY|AS)\b|::|[rsd]\.[a-z_]+\b|\$\d|%s`)

// stringsOf returns the string literals of a Go file by their lines.
func stringsOf(t *testing.T, file string) map[int]string {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, nil, 0)
	must(t, err)
	all := make(map[int]string)
	ast.Inspect(parsed, func(n ast.Node) bool {
		literal, is := n.(*ast.BasicLit)
		if is && literal.Kind == token.STRING {
			text, err := strconv.Unquote(literal.Value)
			must(t, err)
			line := files.Position(literal.Pos()).Line
			all[line] += " " + text
		}
		return true
	})
	return all
}
