package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestAHeaderIsALabelOfNearlyTheSameName(t *testing.T) {
	for name, want := range map[string]string{
		"task": "task", "Task": "Task", "x-tenant": "x_tenant", "celery.task": "celery_task", "naïve": "na_ve",
		"7up": "_7up", "__name__": "_name__", "-1": "_1", "_": "", "--": "", "名": "", " ": "",
		"routing_key": "", "routing-key": "", "reason": "", "job": "", "instance": "", "le": "", "quantile": "",
		"x-possible-duplicate": "", "argsrepr": "", "a\nb": "", "\x1b[31m": "", `a"b`: "", `a\b`: "", "a=b": "", "a,b": "",
		"\xff": "", strings.Repeat("n", 255): strings.Repeat("n", 255), strings.Repeat("n", 256): "",
	} {
		got, err := labelOf(name)
		if err == nil != (want != "") || err == nil && got != want {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, want)
		}
		if err := (By{Header: name}).Check(); err != nil != (want == "") || len(fmt.Sprint(err)) > 500 {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheValueOfAHeaderIsFound(t *testing.T) {
	for headers, want := range map[string]string{
		``:                                      "",
		`{}`:                                    "",
		`[]`:                                    "",
		`{"task": "orders.send"}`:               "orders.send",
		`{"task":"orders.send"}`:                "orders.send",
		`{"id": "7", "task": "a", "z": 1}`:      "a",
		`{"task": 17}`:                          "17",
		`{"task": -1.50, "z": 1}`:               "-1.50",
		`{"task": true}`:                        "true",
		`{"task": null, "z": "a"}`:              "",
		`{"task": {"task": "a"}}`:               "",
		`{"task": ["a"]}`:                       "",
		`{"task": ""}`:                          "",
		`{"z": "task", "task": "a"}`:            "a",
		`{"z": {"task": "b"}, "task": "a"}`:     "a",
		`{"z": [{"task": "b"}]}`:                "",
		`[{"task": "b"}]`:                       "",
		`{"z\"task": "b"}`:                      "",
		`{"z": "\"task\": \"b\"", "task": "a"}`: "a",
		`{"z\\": "}", "task": "a"}`:             "a",
		`{"Task": "b", "tasks": "b"}`:           "",
		`{"task": "a \"quoted\" \u0001\n\\"}`:   "a \"quoted\" \x01\n\\",
		`{"task": "ünï \u00fc"}`:                "ünï ü",
		`{"task": "cut`:                         "cut",
		`{"task": 1`:                            "",
		`{"task":`:                              "",
		`{"task`:                                "",
		`{"task\`:                               "",
		`}}}"task":"a"`:                         "",
	} {
		if got := string(headerValue([]byte(headers), []byte(`"task"`))); got != want {
			t.Errorf("%s: got %q, want %q", headers, got, want)
		}
	}
}

func byLabel(t *testing.T, registry prometheus.Gatherer, label string) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, family := range families {
		if family.GetName() != "cdc_relay_messages_published_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					counts[l.GetValue()] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return counts
}

func TestHeadersCountMessages(t *testing.T) {
	registry, no := prometheus.NewRegistry(), func() bool { return false }
	m, err := New(registry, By{RoutingKeys: []string{"celery"}, Header: "x-task"}, func() int { return 0 }, no, no)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(headers string) {
		r := confirmedResult(headers)
		r.Message.RoutingKey = "celery"
		m.Result(r)
	}
	for range 3 {
		publish(`{"x-task": "orders.send"}`)
	}
	publish("")
	publish(`{"x-task": "` + strings.Repeat("x", 10_000) + `"}`)
	publish(`{"x-task": "a\nb\u001b[31m\u202e\"c\" d"}`)
	publish("{\"x-task\": \"\xff\"}")
	want := map[string]int{"orders.send": 3, "": 1, "other": 1, `a?b?[31m?"c" d`: 1, "?": 1}
	if got := byLabel(t, registry, "x_task"); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := byLabel(t, registry, "routing_key"); !maps.Equal(got, map[string]int{"celery": 7, "other": 0}) {
		t.Errorf("routing keys: %v", got)
	}
	for i := range 100_000 {
		publish(fmt.Sprintf(`{"x-task": %d}`, i))
	}
	got := byLabel(t, registry, "x_task")
	if len(got) != mostLabels || got[""] != 1 || got["orders.send"] != 3 || got["other"] != 1+100_000-(mostLabels-5) {
		t.Errorf("%d labels: %v", len(got), slices.Sorted(maps.Keys(got)))
	}
}

func TestMessagesWithoutTheHeaderKeepTheirLabel(t *testing.T) {
	h, err := newHeader("task")
	if err != nil {
		t.Fatal(err)
	}
	valueOf := func(headers string) string {
		return h.valueOf(&outbox.Message{Row: outbox.Row{Headers: []byte(headers)}})
	}
	for i := range 2 * mostLabels {
		valueOf(fmt.Sprintf(`{"task": %d}`, i))
	}
	if none, first, last := valueOf(`{}`), valueOf(`{"task": 0}`), valueOf(`{"task": 199}`); none != "" || first != "0" || last != otherValues {
		t.Errorf("got %q, %q, %q", none, first, last)
	}
}

// The strings for the labels are the only allocation.
func TestAHeaderCostsOneAllocation(t *testing.T) {
	for _, task := range []string{`"orders.send"`, `"a longer name, which no small buffer of the compiler holds: orders.tasks.send"`, "17"} {
		m, r := newTestMetrics(t, By{Header: "task"}), confirmedResult(`{"id": "4bf92f35", "task": `+task+`}`)
		if n := testing.AllocsPerRun(1000, func() { m.Result(r) }); n > 1 {
			t.Errorf("%v allocations a message with task %s", n, task)
		}
	}
}

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

func TestRoutingKeyLabelsAreBounded(t *testing.T) {
	keys, err := newRoutingKeys([]string{"orders.*", "paid"})
	if err != nil {
		t.Fatal(err)
	}
	label := func(key string) string { return keys.valueOf(&outbox.Message{Row: outbox.Row{RoutingKey: key}}) }
	labels := make(map[string]bool)
	for i := range 1000 {
		labels[label(fmt.Sprintf("orders.%d", i))] = true
		labels[label(fmt.Sprintf("invoices.%d", i))] = true
	}
	if len(labels) != mostLabels || label("orders.0") != "orders.0" || label("orders.999") != otherValues || label("paid") != otherValues {
		t.Errorf("%d labels", len(labels))
	}
	if _, err := newRoutingKeys([]string{"a", ""}); err == nil {
		t.Error("an empty pattern was accepted")
	}
}
