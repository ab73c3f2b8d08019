package main

import (
	"context"
	"errors"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// messagesOf returns the texts in front of the colon of each item in a part of the page.
func messagesOf(t *testing.T, part string) []string {
	t.Helper()
	var all []string
	for _, item := range regexp.MustCompile("(?m)^- ((?:`[^`]+`(?:,\\s+)?)+):").FindAllStringSubmatch(part, -1) {
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(item[1], -1) {
			all = append(all, strings.Join(strings.Fields(text[1]), " "))
		}
	}
	if len(all) == 0 {
		t.Fatal("the page has no messages")
	}
	return all
}

// partsOfTroubleshooting are the chapters about the program, and the one about errors of Postgres in an application.
func partsOfTroubleshooting(t *testing.T) (program, application string) {
	t.Helper()
	program, application, found := strings.Cut(readDoc(t, "troubleshooting.md"), "## In the application")
	if !found {
		t.Fatal("docs/troubleshooting.md has no chapter about applications")
	}
	return program, application
}

// Each message of the page stands in one string of the program, in which … is a value.
func TestTheTroubleshootingPageQuotesTheProgram(t *testing.T) {
	var literals strings.Builder
	for _, file := range sources(t, token.NewFileSet()) {
		ast.Inspect(file, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					literals.WriteString(strings.ReplaceAll(text, "\n", " ") + "\n")
				}
			}
			return true
		})
	}
	program, _ := partsOfTroubleshooting(t)
	for _, message := range messagesOf(t, program) {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(message), "…", ".+")
		if !regexp.MustCompile(pattern).MatchString(literals.String()) {
			t.Errorf("docs/troubleshooting.md: the program never says %q", message)
		}
	}
}

// The errors of applications are those of Postgres.
func TestTheTroubleshootingPageQuotesPostgres(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	role := services.Name(t)
	insert := "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')"
	execute(t, conn, "CREATE ROLE "+role+"; GRANT USAGE ON SCHEMA public TO "+role+"; GRANT INSERT ON outbox TO "+role)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	said := ""
	for _, sql := range []string{
		"SET ROLE " + role + "; " + insert + " RETURNING id",
		"INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}'::text)",
		insert + "; ALTER SEQUENCE outbox_id_seq RESTART; " + insert,
	} {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		failed, ok := errors.AsType[*pgconn.PgError](err)
		if !ok {
			t.Fatalf("%s: %v", sql, err)
		}
		said += failed.Message + "\n"
		execute(t, conn, "RESET ROLE")
	}
	_, application := partsOfTroubleshooting(t)
	messages := messagesOf(t, application)
	for _, message := range messages {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(message), "…", ".+")
		if !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("docs/troubleshooting.md: Postgres does not say %q, but\n%s", message, said)
		}
	}
	if n := strings.Count(said, "\n"); len(messages) != n {
		t.Errorf("docs/troubleshooting.md has %d messages, and %d were caused", len(messages), n)
	}
}
