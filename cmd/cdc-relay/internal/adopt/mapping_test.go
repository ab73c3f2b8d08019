package adopt

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseMap(t *testing.T) {
	all, err := parseMap(`routing_key=topic, exchange='a,b''c=d' ,ordering_key="Kind"||':' || key,created_at=,headers.x-tenant=tenant`)
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{
		{"routing_key", []part{{column: "topic"}}},
		{"exchange", []part{{literal: true, text: "a,b'c=d"}}},
		{"ordering_key", []part{{column: "Kind", quoted: true}, {literal: true, text: ":"}, {column: "key"}}},
		{"created_at", nil},
		{"headers.x-tenant", []part{{column: "tenant"}}},
	}
	if fmt.Sprint(all) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", all, want)
	}
	for text, wanted := range map[string]string{
		"topic":                         "want COLUMN OF THE OUTBOX=COLUMN OF THE TABLE",
		"id=id":                         `"id" is no column of the outbox to map`,
		"properties.ttl=x":              `"properties.ttl": properties has no such entry, want one of content_type`,
		"headers.=x":                    `"headers." is no column`,
		"payload=body,payload=b":        "payload is set twice",
		"payload=lower(body)||'":        "a quote is not closed",
		"payload=a b":                   `unexpected "b"`,
		"payload=a||":                   "a column is missing",
		"payload=a||,routing_key=topic": `unexpected ",routing_key=topic"`,
	} {
		if _, err := parseMap(text); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%s: got %v, want %s", text, err, wanted)
		}
	}
}
