package metrics

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

// FuzzHeaderValue compares with the JSON package.
func FuzzHeaderValue(f *testing.F) {
	f.Add(`{"z": {"task": 1}, "task": "a\"b"}`, "task")
	f.Add(`{"ta": [], "": "\\", "task": 1e3}`, "ta")
	f.Fuzz(func(t *testing.T, text, name string) {
		headerValue([]byte(text), []byte(`"`+name+`"`)) // it must not panic
		var headers map[string]any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if _, err := newHeader(name); err != nil || decoder.Decode(&headers) != nil || headers == nil {
			return
		}
		canonical, err := json.Marshal(headers) // as Postgres, it has no duplicate names and escapes few characters
		if err != nil || strings.Contains(string(canonical), `\u00`) || strings.Contains(string(canonical), `\u20`) {
			return
		}
		want := ""
		switch value := headers[name].(type) {
		case string:
			want = value
		case json.Number:
			want = value.String()
		case bool:
			want = strconv.FormatBool(value)
		}
		if got := string(headerValue(canonical, []byte(`"`+name+`"`))); got != want {
			t.Errorf("%s of %s: got %q, want %q", name, canonical, got, want)
		}
	})
}
