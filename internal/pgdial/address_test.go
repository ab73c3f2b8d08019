package pgdial_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

// The server stores the NFKC form of a password, and so does psql send it.
func TestARejectedPasswordMayNeedItsReplacedForm(t *testing.T) {
	for password, needs := range map[string]bool{
		"%C2%BD": true, "%EF%AC%81sh": true, "%EF%BD%B6": true, "e%CC%81": true, "%C3%A9": false, "plain": false,
	} {
		text := pgdial.AddressOf("postgres://u:"+password+"@h/d", "").WithOrigin("", &pgconn.PgError{Code: "28P01"})
		if strings.Contains(text, "NFKC") != needs {
			t.Errorf("%s: %q", password, text)
		}
	}
}

func TestAnAddressHasNoParameterThatTheServerRejects(t *testing.T) {
	cases := map[string]string{
		"":                                       "",
		"sslmode=require&channel_binding=prefer": "",
		"application_name=shop&options=-c%20jit%3Doff&TimeZone=UTC": "",
		"target_session_attrs=read-write&connect_timeout=3":         "",
		"app.tenant=7&statement_timeout=10s&tcp_keepalives_idle=30": "",
		"connection_limit=5&pgbouncer=true":                         "connection_limit",
	}
	for name := range strings.FieldsSeq(`pool_max_conns pool_min_idle_conns gssencmode keepalives keepalives_idle hostaddr
		load_balance_hosts fallback_application_name replication default_query_exec_mode statement_cache_capacity schema aplication_name`) {
		cases[name+"=1"] = name
	}
	for parameters, want := range cases {
		_, err := pgdial.Parse("postgres://shop:secret@localhost/shop?" + parameters)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), "parameter "+want+" ") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: got %v, want an error about %s", parameters, err, want)
		}
	}
}

// Errors quote nothing of the address: it has a password.
func TestAnAddressInAnotherFormIsNamed(t *testing.T) {
	const form = "not a URL of the form postgres://user:password@host:5432/database"
	const begin = "want a URL that begins with postgres:// or postgresql://"
	for text, want := range map[string]string{
		" postgres://user:hidden@host/shop\r\n":                  "",
		"\n\thost=host user=user\n dbname=shop ":                 "",
		"options='-c x=a://b' dbname=shop":                       "",
		"jdbc:postgresql://host/shop?user=user&password=hidden":  form + ", without jdbc:",
		"jdbc:postgresql:shop?password=hidden":                   form + ", without jdbc:",
		"postgresql+psycopg2://user:hidden@host/shop?sslmode=no": form + ", without +",
		"postgres+asyncpg://user:hidden@host/shop":               form + ", without +",
		"jdbc:mysql://host/shop?password=hidden":                 begin + ": the outbox is in Postgres, and mysql:// is another server",
		"mysql://user:hidden@host/shop":                          begin + ": the outbox is in Postgres, and mysql:// is another server",
		"mongodb+srv://user:hidden@host/shop":                    "mongodb+srv:// is another server",
		"http://user:hidden@host/shop?a=b":                       begin + ": cdc-relay speaks to Postgres itself",
		"amqp://user:hidden@host/shop":                           "goes into --amqp-url (CDC_RELAY_AMQP_URL)",
		"postgis://user:hidden@host/shop":                        ": write postgres:// in place of postgis://",
		"POSTGRES://user:hidden@host/shop?sslmode=disable":       ": write postgres:// in place of POSTGRES://",
		"hidden://user@host/shop":                                begin,
		"user:hidden@host/shop?sslmode=disable":                  "neither a URL",
		"//user:hidden@host/shop?sslmode=disable":                "neither a URL",
		"postgres:/user:hidden@host/shop?a=b":                    "neither a URL",
		"postgres://user:hidden@host/shop\n?sslmode=disable":     "contains a control character",
		"postgres://user:hidden@ho\tst/shop":                     "contains a control character",
		"postgres://user:hidden@host/sh\x01op":                   "contains a control character",
		" \n":                                                    "is empty",
	} {
		config, err := pgdial.Parse(text)
		switch {
		case want == "" && (err != nil || config.Database != "shop" && !strings.Contains(text, "options")):
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden")):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
