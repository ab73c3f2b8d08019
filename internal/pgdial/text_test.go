package pgdial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// The text is one line, with each address and cause once, and a hint.
func TestTextOfAConnectionError(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://shop@127.0.0.1:1/shop":                             "127.0.0.1:1: connection refused", // twice, with and without TLS
		"postgres://shop@127.0.0.1:1,127.0.0.1:2/shop?sslmode=disable": "127.0.0.1:1: connection refused; 127.0.0.1:2: connection refused",
		"host=/nowhere user=shop":                                      "/nowhere/.s.PGSQL.5432: no such file or directory",
	} {
		_, err := pgconn.Connect(t.Context(), url)
		if err == nil {
			t.Fatalf("%s: connected", url)
		}
		err = fmt.Errorf("look for table t: %w", err)
		if got := Text(err); got != "look for table t: cannot connect to Postgres: "+want {
			t.Errorf("%s: got %q", url, got)
		}
		if hint := Hint(err); !strings.HasPrefix(hint, "pg_isready -h ") {
			t.Errorf("%s: the hint is %q", url, hint)
		}
	}
	_, refused := pgconn.Connect(t.Context(), "postgres://shop@127.0.0.1:1/shop")
	const cause = "cannot connect to Postgres: 127.0.0.1:1: connection refused"
	for want, got := range map[string]string{
		cause:            Cause(fmt.Errorf("look for table t: %w", refused)),
		"full: " + cause: Cause(&problem.Problem{What: "full", Err: refused}),
		"a\nb":           Text(errors.New("a\nb")),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestTextHasNoWordsOfTheDriver: neither functions of pgx, nor codes, nor a severity before another.
func TestTextHasNoWordsOfTheDriver(t *testing.T) {
	denied := &pgconn.PgError{Severity: "FEHLER", Code: "42501", Message: "keine Berechtigung"}
	for want, err := range map[string]error{
		"delete rows: keine Berechtigung":                                                  fmt.Errorf("delete rows: %w", denied),
		"a: permission denied":                                                             fmt.Errorf("a: %w", errors.New("ERROR: permission denied (SQLSTATE 42501)")),
		"read the replication stream: the connection to Postgres was lost":                 fmt.Errorf("read the replication stream: receive message failed: %w", io.ErrUnexpectedEOF),
		"read the replication slots: the connection to Postgres was lost":                  errors.New("read the replication slots: conn closed"),
		"read the newest id: timed out":                                                    fmt.Errorf("read the newest id: timeout: %w", context.DeadlineExceeded),
		"read the file: unexpected EOF":                                                    errors.New("read the file: unexpected EOF"),
		"read the replication stream: terminating connection due to administrator command": errors.New("read the replication stream: receive message failed: FATAL: terminating connection due to administrator command (SQLSTATE 57P01)"),
	} {
		if got := Text(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestTextOfServersThatAreNotPostgres: what a web server or a broker answers is not a message of Postgres.
func TestTextOfServersThatAreNotPostgres(t *testing.T) {
	for _, says := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "AMQP\x00\x00\x09\x01"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 8)) // unread, it would be a reset
				_, _ = io.WriteString(conn, says)
				_ = conn.Close()
			}
		}()
		_, err = pgconn.Connect(t.Context(), "postgres://shop@"+listener.Addr().String()+"/shop")
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if err == nil || Text(err) != "cannot connect to Postgres: "+listener.Addr().String()+": the server does not speak the protocol of Postgres" {
			t.Errorf("%q: %v", says, Text(err))
		}
	}
}
