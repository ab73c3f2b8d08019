package amqpdial_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
)

func TestNodesOfAnAddress(t *testing.T) {
	for text, want := range map[string][]string{
		"amqp://": {"localhost:5672"},
		"amqp://user:p%40ss,word@a:5672,b:5673,c:5674/v%2Fhost?heartbeat=5": {"a:5672", "b:5673", "c:5674"},
		"amqp://a,b":                                        {"a:5672", "b:5672"},
		"amqps://[::1],[2001:db8::2]:5,c/x":                 {"[::1]:5671", "[2001:db8::2]:5", "c:5671"},
		"amqp://a/v,amqp://b:1,c/v":                         {"a:5672", "b:1", "c:5672"},
		"amqp://a/v amqps://b/v":                            {"a:5672", "b:5671"},
		"amqp://u:p@a/v\namqp://u:p@b/v\r\n":                {"a:5672", "b:5672"},
		"amqps://localhost?auth_mechanism=EXTERNAL":         {"localhost:5671"},
		"amqp://u:one,amqp@a,b/":                            {"a:5672", "b:5672"},
		"amqp://localhost?connection_timeout=1&heartbeat=1": {"localhost:5672"},
	} {
		nodes, err := amqpdial.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, node := range nodes {
			got = append(got, node.Address())
			if strings.HasPrefix(text, "amqp://user") && (node.URI.Username != "user" ||
				node.URI.Password != "p@ss,word" || node.URI.Vhost != "v/host") {
				t.Errorf("%s: login %q %q, virtual host %q", text, node.URI.Username, node.URI.Password, node.URI.Vhost)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestMistakesOfAnAddressAreNamedWithoutThePassword(t *testing.T) {
	const form = "not a URL of the form"
	for text, want := range map[string]string{
		"":                                            "want a URL that begins with amqp://",
		"hidden://user@host/":                         "want a URL that begins with amqp://",
		"http://user:hidden@host/":                    "goes into --management-url",
		"amqp+ssl://user:hidden@host/":                ": write amqps:// in place of amqp+ssl://",
		"pyamqp://user:hidden@host/":                  ": write amqp:// in place of pyamqp://",
		"postgres://user:hidden@host/":                "goes into --database-url",
		"host=localhost password=hidden":              "goes into --database-url",
		"kafka://user:hidden@host/":                   "and not with kafka://",
		"amqp://user:hidden@ho\x01st/":                "contains a control character",
		"amqp://user:hidden@host:notaport/":           form,
		"amqp://user:hidden@a:1:2,b/":                 form,
		"amqp://user:hidden@a,b:x/":                   form,
		"amqp://user:hidden/word@host/":               form,
		"amqp://user:12/hidden@host/":                 form,
		"amqp://user:hidden%zz@host/":                 form,
		"amqp://user:hidden#x@host/":                  form,
		"amqp://user:hid den@host/":                   form,
		"amqp://user:hidden@a/v,amqp://b/w":           "different virtual hosts",
		"amqp://user:hidden@a/?cacertfile=/x":         "parameter cacertfile needs a URL that begins with amqps://",
		"amqp://a?hart=1":                             "parameter hart is unknown",
		"amqp://user:hidden@a/?verify=none":           "parameter verify is unknown",
		"amqp://user:hidden@a/?auth_mechanism=hidden": "wrong value for parameter auth_mechanism",
	} {
		_, err := amqpdial.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("amqp://user:hidden@a:5672,b:5673/v?heartbeat=5 amqps://c,d/v")
	f.Add("amqp://[::1]:5,a/,amqp://b")
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := amqpdial.Parse(text)
		if (err == nil) != (len(nodes) > 0) {
			t.Fatalf("%d nodes, %v", len(nodes), err)
		}
		for _, node := range nodes {
			again, err := amqpdial.Parse(node.URL)
			if err != nil || len(again) != 1 || !reflect.DeepEqual(again[0], node) {
				t.Errorf("%q: %v, %v", node.URL, again, err)
			}
		}
	})
}
