package celery_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/celery"
)

func TestHeadersThatRepeatTheBodyAreHidden(t *testing.T) {
	deep := strings.Repeat(`{"headers": `, 20_000) + `{"argsrepr": "s3cr3t"}` + strings.Repeat(`}`, 20_000)
	for headers, want := range map[string]string{
		`{"argsrepr": "(s3cr3t,)"}`:                         `{"argsrepr": "(hidden)"}`,
		`{"a": 1, "kwargsrepr": "{'k': 's3cr3t'}", "b": 2}`: `{"a": 1, "kwargsrepr": "(hidden)", "b": 2}`,
		`{"argsrepr": ["s3cr3t", {"x": "s3cr3t"}]}`:         `{"argsrepr": "(hidden)"}`,
		`{"headers": {"argsrepr": {"x": "s3cr3t"}}}`:        `{"headers": {"argsrepr": "(hidden)"}}`,
		`{"l": [1, {"kwargsrepr": "s3cr3t"}, [], {}]}`:      `{"l": [1, {"kwargsrepr": "(hidden)"}, [], {}]}`,
		`{"\u0061rgsrepr": "s3cr3t"}`:                       `{"argsrepr": "(hidden)"}`,
		`{"task": "argsrepr", "n": 12345678901234567890.5}`: `{"task": "argsrepr", "n": 12345678901234567890.5}`,
		`{"ArgsRepr": "x", "argsrepr2": null}`:              `{"ArgsRepr": "x", "argsrepr2": null}`,
		`{"task": "orders.add", "n": {"b": [true]}}`:        `{"task": "orders.add", "n": {"b": [true]}}`,
	} {
		got := celery.HideBody([]byte(headers))
		if string(got) != want || !json.Valid(got) {
			t.Errorf("%s: %s, want %s", headers, got, want)
		}
	}
	if got := celery.HideBody([]byte(deep)); strings.Contains(string(got), "s3cr3t") {
		t.Errorf("deep headers show the body")
	}
	if celery.HideBody(nil) != nil {
		t.Error("no headers became some")
	}
}
