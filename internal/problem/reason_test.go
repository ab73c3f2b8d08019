package problem

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestAdviceFitsTheRejection(t *testing.T) {
	none, shop := "", "shop"
	const returned, missing = `NO_ROUTE (312): no queue took the message with routing key "k" from exchange `, "NOT_FOUND - no exchange 'shop' in vhost '/' (404)"
	const queue, bind, declare = "declare a queue with", `bind a queue to the exchange "shop" for`, `declare the exchange "shop" and bind`
	const refused = "access_refused: ACCESS_REFUSED - "
	for _, test := range []struct {
		reason   outbox.Reason
		exchange *string
		detail   string
		fix      string // its begin
	}{
		{outbox.ReasonUnroutable, &none, "", queue},
		{outbox.ReasonUnroutable, nil, "unroutable: " + returned + `""`, queue},
		{outbox.ReasonUnroutable, &shop, `… from exchange ""`, bind},
		{outbox.ReasonUnroutable, nil, "unroutable: " + returned + `"shop"`, bind},
		{outbox.ReasonUnroutable, nil, `… from exchange "x from exchange \"\""`, `bind a queue to the exchange "x from`},
		{outbox.ReasonUnroutable, nil, "", "bind a queue to the exchange for"},
		{outbox.ReasonNoExchange, nil, "exchange_missing: " + missing, declare},
		{outbox.ReasonNoExchange, nil, missing, declare},
		{outbox.ReasonNoExchange, &shop, "", declare},
		{outbox.ReasonRetriesExceeded, nil, "exchange_missing: " + missing, declare},
		{outbox.ReasonRetriesExceeded, nil, "unroutable: " + returned + `"shop"`, bind},
		{outbox.ReasonRetriesExceeded, nil, "nack: RabbitMQ answered", "add consumers"},
		{outbox.ReasonRetriesExceeded, nil, "", ReadError},
		{outbox.ReasonAccessRefused, nil, refused + "write access to exchange 'shop' in vhost '/' refused for user 'u'", `let the relay's RabbitMQ user write to the exchange "shop"`},
		{outbox.ReasonAccessRefused, nil, refused + "write access to topic 'k' in exchange 'shop' in vhost '/'", "let the relay's RabbitMQ user write to the exchange ("},
		{outbox.ReasonRetriesExceeded, nil, "retries_exhausted: x", ReadError},
		{outbox.ReasonAccessRefused, nil, refused + "write access", "let the relay's"},
		{outbox.ReasonAccessRefused, &shop, refused + "write access", `if applications may use the exchange "shop", let`},
		{outbox.ReasonAccessRefused, &shop, refused + "cannot publish to internal exchange 'shop'", "use an exchange that is bound to"},
	} {
		meaning, fix := OfReason(test.reason, test.exchange, test.detail)
		if !strings.HasPrefix(fix, test.fix) || meaning == "" || OneLine(fix) != fix {
			t.Errorf("%s, %s: got %s, %s", test.reason, test.detail, meaning, fix)
		}
	}
	for _, reason := range outbox.Reasons() {
		if meaning, fix := OfReason(reason, nil, ""); meaning == "" || fix == "" {
			t.Errorf("%s has no advice", reason)
		}
	}
}

func TestCommandNamesATableOtherThanTheDefault(t *testing.T) {
	for table, want := range map[string]string{
		"outbox":       "cdc-relay setup",
		`sales."It's"`: `cdc-relay setup --table 'sales."It'\''s"'  # with the relay's own --slot and --publication`,
	} {
		parsed, err := outbox.ParseTable(table)
		if err != nil {
			t.Fatal(err)
		}
		if got := Command(parsed, "setup"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Each name goes into one line that psql reads as a remark: a paste of it ends nothing.
func TestHintsThatDestroySayWhatFirst(t *testing.T) {
	for _, gid := range []string{"", "a", "it's", "a\n; DROP TABLE x; --", "a\r\\! id", "-- ", "a\u202e"} {
		got := EndPrepared(gid)
		if !strings.HasPrefix(got, "-- ask") || OneLine(got) != got {
			t.Errorf("%q: got %s", gid, got)
		}
		if gid != "" && strings.Index(got, "COMMIT PREPARED") > strings.Index(got, "ROLLBACK PREPARED") {
			t.Errorf("%q: got %s", gid, got)
		}
	}
	if got := EndSession(7); !strings.Contains(got, "work is lost") {
		t.Errorf("got %s", got)
	}
}

// The name is all that the languages of the server share.
func TestObjectsOfTheCatalogGetAGrant(t *testing.T) {
	const none = "permission denied for "
	for message, want := range map[string]string{
		none + "view pg_stat_activity":                         "'pg_stat_activity'",
		"keine Berechtigung für Sicht pg_stat_activity":        "'pg_stat_activity'",
		"関数pg_current_wal_lsnへのアクセスが拒否されました":                   "'pg_current_wal_lsn'",
		"droit refusé pour la fonction has_table_privilege":    "'has_table_privilege'",
		"keine Berechtigung für Schema pg_catalog":             `GRANT USAGE ON SCHEMA pg_catalog TO "r 1";`,
		none + "table outbox":                                  "",
		none + "function outbox_enqueue":                       "",
		none + "view pg_x; DROP TABLE outbox":                  "'pg_x'",
		"must be superuser to call permission denied for view": "",
	} {
		err := fmt.Errorf("read: %w", &pgconn.PgError{Code: "42501", Message: message, Routine: "aclcheck_error"})
		if got := Grant(err, "r 1"); !strings.Contains(got, want) || (got == "") != (want == "") || strings.Contains(got, "DROP") {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
	for _, err := range []error{errors.New(none + "view pg_locks"), &pgconn.PgError{Code: "42501", Message: none + "database pg_app", Routine: "CheckMyDatabase"}} {
		if got := Grant(err, "r"); got != "" {
			t.Errorf("%v: got %q", err, got)
		}
	}
}

func TestErrorsGetAHint(t *testing.T) {
	const pooler = "not of a pooler"
	for name, test := range map[string]struct {
		err  error
		want string // the start or a part of the hint
	}{
		"a problem":                            {fmt.Errorf("start: %w", New("cdc-relay setup", "no table")), "cdc-relay setup"},
		"a prepared statement of another":      {&pgconn.PgError{Code: "42P05"}, pooler},
		"a prepared statement that is gone":    {fmt.Errorf("sweep: %w", &pgconn.PgError{Code: "26000"}), pooler},
		"a parameter that poolers do not take": {&pgconn.PgError{Code: "08P01", Message: "unsupported startup parameter: replication"}, pooler},
		"another violation":                    {&pgconn.PgError{Code: "08P01", Message: "invalid message format"}, ""},
		"a standby":                            {fmt.Errorf("drain: %w", &pgconn.PgError{Code: "25006"}), "use the primary"},
		"anything":                             {errors.New("broken pipe"), ""},
	} {
		if got := Hint(test.err); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestErrorsOfCertificatesAreToldApart(t *testing.T) {
	server := TLS{Server: "Postgres", InURL: "in URL", Authority: "sslrootcert=FILE", Client: "sslcert=FILE", Port: "5432"}
	alert := func(text string) error { return &net.OpError{Op: "remote error", Err: errors.New("tls: " + text)} }
	for _, test := range []struct {
		err  error
		want string
	}{
		{x509.CertificateInvalidError{Reason: x509.Expired}, "# renew Postgres's certificate"},
		{x509.CertificateInvalidError{Reason: x509.IncompatibleUsage}, "# give Postgres another certificate"},
		{x509.UnknownAuthorityError{}, "# set the authority of Postgres's certificate in URL: sslrootcert=FILE"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, "# give Postgres a certificate with the host"},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"db"}}}, "# use a host of Postgres's certificate"},
		{tls.RecordHeaderError{}, "# this port speaks no TLS"},
		{errors.New("tls: failed to parse certificate from server: x509: negative serial number"), "# give Postgres another certificate: Go reads none with this mistake; or, until then: export GODEBUG=x509negativeserial=1"},
		{errors.New("tls: failed to parse certificate from server: x509: malformed tbs certificate"), "# give Postgres another certificate: Go reads none with this mistake"},
		{alert("expired certificate"), "# use a client certificate that Postgres accepts"},
		{alert("certificate required"), "# use a client certificate that Postgres accepts"},
		{alert("unknown certificate authority"), "# use a client certificate that Postgres accepts"},
		{alert("protocol version not supported"), "# Postgres rejected the TLS handshake"},
		{errors.New("connection refused"), ""},
	} {
		if got := server.Hint(fmt.Errorf("connect: %w", test.err)); !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", test.err, got, test.want)
		}
	}
}
