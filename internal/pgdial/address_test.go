package pgdial_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

func TestAnAddressHasNoParameterThatTheServerRejects(t *testing.T) {
	for parameters, want := range map[string]string{
		"":                                       "",
		"sslmode=require&channel_binding=prefer": "",
		"application_name=shop&options=-c%20jit%3Doff&TimeZone=UTC": "",
		"target_session_attrs=read-write&connect_timeout=3":         "",
		"app.tenant=7&statement_timeout=10s&tcp_keepalives_idle=30": "",
		"pool_max_conns=4":                  "pool_max_conns",
		"pool_min_idle_conns=1":             "pool_min_idle_conns",
		"gssencmode=disable":                "gssencmode",
		"keepalives=1":                      "keepalives",
		"keepalives_idle=30":                "keepalives_idle",
		"hostaddr=127.0.0.1":                "hostaddr",
		"load_balance_hosts=random":         "load_balance_hosts",
		"fallback_application_name=psql":    "fallback_application_name",
		"replication=database":              "replication",
		"default_query_exec_mode=exec":      "default_query_exec_mode",
		"statement_cache_capacity=0":        "statement_cache_capacity",
		"schema=public":                     "schema",
		"aplication_name=shop":              "aplication_name",
		"connection_limit=5&pgbouncer=true": "connection_limit",
	} {
		_, err := pgdial.Parse("postgres://shop:secret@localhost/shop?" + parameters)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", parameters, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "parameter "+want+" ")):
			t.Errorf("%s: got %v, want an error about %s", parameters, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("the error contains the password: %v", err)
		}
	}
}

// Errors quote nothing of the address: it has a password.
func TestAnAddressInAnotherFormIsNamed(t *testing.T) {
	const form = "not a URL of the form postgres://user:password@host:5432/database"
	for text, want := range map[string]string{
		" postgres://user:hidden@host/shop\r\n":                  "",
		"\n\thost=host user=user\n dbname=shop ":                 "",
		"options='-c x=a://b' dbname=shop":                       "",
		"jdbc:postgresql://host/shop?user=user&password=hidden":  form + ", without jdbc:",
		"jdbc:postgresql:shop?password=hidden":                   form + ", without jdbc:",
		"postgresql+psycopg2://user:hidden@host/shop?sslmode=no": form + ", without +",
		"postgres+asyncpg://user:hidden@host/shop":               form + ", without +",
		"http://user:hidden@host/shop?a=b":                       form,
		"amqp://user:hidden@host/shop":                           form,
		"POSTGRES://user:hidden@host/shop?sslmode=disable":       form,
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
