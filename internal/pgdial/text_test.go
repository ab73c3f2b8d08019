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
	"github.com/jackc/pgx/v5/pgproto3"

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

// answering gives each connection to a function, and then closes it. The caller closes the listener.
func answering(t *testing.T, answer func(net.Conn)) net.Listener {
	t.Helper()
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
			answer(conn)
			_ = conn.Close()
		}
	}()
	return listener
}

// TestTextOfServersThatAreNotPostgres: what a web server or a broker answers is not a message of Postgres.
func TestTextOfServersThatAreNotPostgres(t *testing.T) {
	for _, says := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "AMQP\x00\x00\x09\x01"} {
		listener := answering(t, func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 8)) // unread, it would be a reset
			_, _ = io.WriteString(conn, says)
		})
		_, err := pgconn.Connect(t.Context(), "postgres://shop@"+listener.Addr().String()+"/shop")
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if err == nil || Text(err) != "cannot connect to Postgres: "+listener.Addr().String()+": the server does not speak the protocol of Postgres" {
			t.Errorf("%q: %v", says, Text(err))
		}
	}
}

// The servers of some users speak their language: SQLSTATE and routine stay the same.
func TestHintsNeedNoEnglish(t *testing.T) {
	const login, client = "InitializeSessionUserId", "ClientAuthentication"
	for _, test := range []struct{ code, routine, message, want string }{
		{"28P01", "auth_failed", "Passwort-Authentifizierung für Benutzer »shop« fehlgeschlagen", "-- check user and password"},
		{"28000", login, "Rolle »shop« hat keine Berechtigung zum Einloggen", "ALTER ROLE shop LOGIN;"},
		{"28000", client, "kein pg_hba.conf-Eintrag für Host »10.0.0.7«, Benutzer »shop«, Datenbank »shop«, keine Verschlüsselung", "# set sslmode=verify-full in"},
		{"28000", client, "kein pg_hba.conf-Eintrag für Host »10.0.0.7«, Benutzer »shop«, Datenbank »shop«, keine Verschlüsselung", "host shop shop 10.0.0.7/32 scram"},
		{"28000", client, "kein pg_hba.conf-Eintrag für Host »fe80::7«, Benutzer »shop«, Datenbank »shop«, keine Verschlüsselung", "host shop shop fe80::7/128 scram"},
		{"28000", client, "kein pg_hba.conf-Eintrag für Host »[local]«, Benutzer »shop«", "local shop shop scram-sha-256"},
		{"28000", client, "Verbindung erfordert ein gültiges Client-Zertifikat", "# set a client certificate"},
		{"28000", "auth_failed", "LDAP-Authentifizierung für Benutzer »shop« fehlgeschlagen", "such as ident or LDAP"},
		{"53300", login, "zu viele Verbindungen von Rolle »shop«", "ALTER ROLE shop CONNECTION LIMIT -1;"},
		{"53300", "CheckMyDatabase", "zu viele Verbindungen für Datenbank »shop«", "ALTER DATABASE shop CONNECTION LIMIT -1;"},
		{"53300", "InitProcess", "tut mir leid, schon zu viele Verbindungen", "SELECT pid"},
	} {
		listener := answering(t, func(conn net.Conn) {
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: test.code, Routine: test.routine, Message: test.message})
			_ = server.Flush()
		})
		_, err := pgconn.Connect(t.Context(), "postgres://shop@"+listener.Addr().String()+"/shop?sslmode=disable")
		if got := Hint(err); !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q (%v), want %q", test.message, got, err, test.want)
		}
		_ = listener.Close()
	}
}
