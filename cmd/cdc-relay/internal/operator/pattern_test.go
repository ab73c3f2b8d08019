package operator

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// matching returns which of the texts the SQL of a pattern selects.
func matching(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, conn *pgx.Conn, p Pattern, texts []string,
) (selected []bool) {
	t.Helper()
	c := conditions{args: []any{texts}}
	p.addTo(&c, "k.text")
	sql := `SELECT ` + c.String() + ` FROM unnest($1::text[]) WITH ORDINALITY k(text, nth) ORDER BY nth`
	rows, err := conn.Query(context.Background(), sql, c.args...)
	if err == nil {
		selected, err = pgx.CollectRows(rows, pgx.RowTo[bool])
	}
	if err != nil {
		t.Fatalf("%q: %v\n%s\n%q", p.text, err, sql, c.args[1:])
	}
	return selected
}

// binds is the meaning of a pattern, word by word. An empty text has no words, as for RabbitMQ.
func binds(pattern, key string) bool {
	split := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ".")
	}
	words := split(key)
	// reached[i]: the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for _, p := range split(pattern) {
		next := make([]bool, len(words)+1)
		for i := range reached {
			switch {
			case p == "#":
				next[i] = reached[i] || i > 0 && next[i-1]
			case i > 0:
				next[i] = reached[i-1] && wordBinds(p, words[i-1])
			}
		}
		reached = next
	}
	return reached[len(words)]
}

// wordBinds compares one word, from the first character on.
func wordBinds(pattern, word string) bool {
	switch {
	case pattern == "":
		return word == ""
	case pattern[0] == '*':
		return wordBinds(pattern[1:], word) || word != "" && wordBinds(pattern, word[1:])
	case pattern[0] == '\\':
		pattern = pattern[1:]
	}
	return word != "" && pattern[0] == word[0] && wordBinds(pattern[1:], word[1:])
}

func TestPatternsSelectAsABindingDoes(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	// Parts are short, so that texts match often. Most have a meaning in an expression, in LIKE or in a pattern.
	part := rapid.SampledFrom([]string{
		"", "", ".", ".", ".", "a", "a", "b", "é", "日本", "%", "_", "?", "+", "(", ")", "[", "]", "{1}", "|", "^", "$", "\n",
		"***=", "(?i)", "A", " ", "-", "0", strings.Repeat("k", 255),
	})
	literal := rapid.OneOf(part, rapid.SampledFrom([]string{"*", "#", `\`}))
	wild := rapid.OneOf(part, rapid.SampledFrom([]string{"*", "#", ".#.", ".*.", "#.", "*.", `\*`, `\#`, `\\`}))
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(wild, 0, 8).Draw(t, "pattern"), "")
		p, err := ParsePattern(pattern)
		if err != nil {
			if len(pattern) <= MostPattern {
				t.Fatalf("%q: %v", pattern, err)
			}
			return
		}
		var keys []string
		for _, parts := range rapid.SliceOfN(rapid.SliceOfN(literal, 0, 8), 20, 40).Draw(t, "keys") {
			keys = append(keys, strings.Join(parts, ""))
		}
		for _, filled := range rapid.SliceOfN(part, 4, 4).Draw(t, "filled") { // these often match
			keys = append(keys, strings.NewReplacer(`\*`, "*", `\#`, "#", `\\`, `\`, "*", filled, "#", filled).Replace(pattern))
		}
		for i, selected := range matching(t, conn, p, keys) {
			if selected != binds(pattern, keys[i]) {
				t.Errorf("%q selects %q: %v", pattern, keys[i], selected)
			}
		}
		only, err := ParsePattern(EscapePattern(keys[0]))
		if err != nil {
			t.Fatalf("%q: %v", keys[0], err)
		}
		for i, selected := range matching(t, conn, only, keys) {
			if selected != (keys[i] == keys[0]) {
				t.Errorf("the escaped %q selects %q: %v", keys[0], keys[i], selected)
			}
		}
	})
}

// An error names the pattern, and a mistake is not a pattern that matches something else.
func TestPatternsWithMistakesAreRejected(t *testing.T) {
	for _, text := range []string{`\`, `a\`, `a\.b`, `\a`, `a.\`, `\\\`, `*\`} {
		if p, err := ParsePattern(text); err == nil || !strings.Contains(err.Error(), "'"+text+"': want") {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	if _, err := ParsePattern("#." + strings.Repeat("x", MostPattern)); err == nil {
		t.Error("a long pattern is accepted")
	}
	if _, err := ParsePattern(strings.Repeat("x", 1<<20)); err != nil {
		t.Errorf("a long text without wildcards: %v", err)
	}
}

// The longest patterns that make the most of each kind of state, with texts that nearly match.
func TestHostilePatternsTakeLittleTime(t *testing.T) {
	conn := tabletest.Connect(t, services.Database(t))
	tabletest.Run(t, conn, `SET statement_timeout = '30s'`)
	fill := func(unit string) string { return strings.Repeat(unit, MostPattern/len(unit)-4) }
	for _, pattern := range []string{
		"#." + fill("a.#.") + "b", "#." + fill("*.") + "b", "#.a." + fill("*.") + "b", fill("*a"), fill("*a.#."), "#." + fill("*a*.#.") + "b",
		fill("#.*.") + "b", fill("a*b*.#."), fill("é.#."), fill("%.#."),
	} {
		p, err := ParsePattern(pattern)
		services.Must(t, err)
		var keys []string
		for _, unit := range []string{"a.", "ab.", "aa", ".", "a.b.", "é.", "x.a."} {
			keys = append(keys, strings.Repeat(unit, 4000/len(unit)))
		}
		for range 4 {
			keys = append(keys, keys...)
		}
		began := time.Now()
		matching(t, conn, p, keys)
		t.Logf("%.20q: %s", pattern, time.Since(began))
	}
}

// planned returns tables without autovacuum, and an operator on their connection.
func planned(t *testing.T) (*tabletest.Tables, *Tables) {
	t.Helper()
	p := tabletest.New(t)
	p.Conn = tabletest.Connect(t, p.URL) // the migrations reset its settings
	p.Exec(`ALTER TABLE outbox SET (autovacuum_enabled = false)`)
	o, err := New(t.Context(), p.Conn, tabletest.Name())
	services.Must(t, err)
	return p, o
}

// Cheap statements neither read nor sort a whole table, however many rows it has.
func TestStatsScansNoTable(t *testing.T) {
	p, o := planned(t)
	p.Fill(tabletest.Rows)
	const most = MostCounted + 1
	none := []int64{}
	blocking := &statsReader{Tables: o, known: Known{Block: true, NotDeleted: []int64{7}}}
	groups := GroupOptions{Most: 10, Header: "task", Keys: &Cause{Reason: "nack"}}
	deadGroups, args := groupsStatement(Dead, groups)
	retryGroups, _ := groupsStatement(Retrying, groups)
	args = append([]any{most}, args...)
	rows := waiting(blocking.known)
	named, ids := Filter{MessageIDs: []outbox.UUID{{1}}}.where(rows, nil)
	lookup := strings.ReplaceAll(rows.found(timedRows+named, "r.id", 100, true), "{most}", "10")
	statements := map[string][]any{
		lookup:  ids,
		rowsSQL: {most}, pendingSQL: {100, none}, blockedSQL: {most}, deadRowsSQL: {most},
		blocking.statesStatement(sampledRows): {most, 0.5, o.table.SQL()},
		blocking.statesStatement(oldestRows):  {most}, blocking.statesStatement(dueRows): {most}, blocking.statesStatement(futureRows): {most},
		`SELECT min(dead_at), max(dead_at) FROM {dead}`:           nil,
		`SELECT coalesce(max(id) - min(id) + 1, 0) FROM {outbox}`: nil,
		keyOfSQL:               {"key 5", 100_000, most},
		deadGroups:             args,
		retryGroups:            args,
		offeredStatement(""):   {100},
		offeredStatement(Dead): {100},
		strings.ReplaceAll(rows.found(firstOfKeySQL, byKey("", "").order(), 1, false), "{most}", "10"): {"key 5", 100_000},
	}
	for _, state := range []string{"never analyzed", "analyzed", "with a hundredth left"} {
		switch state {
		case "analyzed":
			p.Exec(`ANALYZE outbox`)
			p.Exec(`ANALYZE outbox_dead_letter`)
		case "with a hundredth left":
			p.Exec(`DELETE FROM outbox WHERE id % 100 <> 0`)
		}
		for sql, args := range statements {
			var plan string
			err := o.glance(t.Context(), func(_ context.Context, _ querier) error {
				plan = p.Lines("EXPLAIN "+o.fill(sql), args...)
				return nil
			})
			if err != nil || strings.Contains(plan, "Seq Scan on outbox") || strings.Contains(plan, "Bitmap") ||
				sql == lookup && !strings.Contains(plan, "Index Cond: ((message_id >= ") {
				t.Errorf("%s: %v\n%s\n%s", state, err, sql, plan)
			}
		}
	}
}

// A table full of dead rows makes a part of the answer unknown, but does not delay the answer.
func TestStatsGivesUpASlowStatement(t *testing.T) {
	p, o := planned(t)
	reader := &statsReader{Tables: o}
	reader.most.Valid, reader.most.Int64 = true, MostCounted+1
	p.Exec(`INSERT INTO outbox (routing_key, payload) SELECT 'r', '1' FROM generate_series(1, 100)`)
	p.Exec(`VACUUM ANALYZE outbox`) // ANALYZE alone may count rows twice that the server has just counted
	var count Count
	err := o.glance(t.Context(), func(ctx context.Context, tx querier) (err error) {
		p.Exec(`SET statement_timeout = '50ms'`)
		count, err = reader.size(ctx, tx, `SELECT count(*) FROM {outbox}, pg_sleep(60) LIMIT $1`, tabletest.Name(), "")
		return err
	})
	if err != nil || count != (Count{100, Estimate}) {
		t.Errorf("got %+v, %v", count, err)
	}
}

// An id uses the primary key, however many rows there are; a message_id needs a scan.
func TestRequeueAndPurgeUseThePrimaryKey(t *testing.T) {
	p, o := planned(t)
	p.Fill(tabletest.Rows)
	p.Exec(`ANALYZE outbox_dead_letter`)
	ids, uuids := make([]int64, 1000), make([][16]byte, 1000)
	for sql, args := range map[string][]any{
		o.fill(purgeSQL): {ids, uuids}, o.requeueStatement(nil): {ids, uuids, ids},
		o.fill(retrySQL): {ids, uuids}, o.fill(deleteSQL): {ids, uuids},
	} {
		if plan := p.Lines("EXPLAIN "+sql, args...); strings.Contains(plan, "Seq Scan on outbox") {
			t.Errorf("%s", plan)
		}
	}
}
