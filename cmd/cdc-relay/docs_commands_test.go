package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func codeOf(text, language string) (all []string) {
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// blocks returns the code blocks of a page in that language; there are some.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	all := codeOf(readDoc(t, page), language)
	if len(all) == 0 {
		t.Fatalf("docs/%s has no %s", page, language)
	}
	return all
}

// Each command on the pages, also within a sentence, and in deploy/ exists and accepts the flags given there.
func TestDocumentedCommandsExist(t *testing.T) {
	app, namedIn := (&process{}).app(), regexp.MustCompile("`(?:cdc-relay )?([a-z]+ [^`]*--[^`]*)`")
	texts, args := deployed(t), regexp.MustCompile(`args: \["(\w+)", (.*)\]`)
	for manifest, text := range texts {
		for _, m := range args.FindAllStringSubmatch(text, -1) {
			texts[manifest] += "\ncdc-relay " + m[1] + " " + strings.NewReplacer(`"`, "", ",", "").Replace(m[2])
			if app.Command(m[1]) == nil {
				t.Errorf("deploy/%s: there is no command %s", manifest, m[1])
			}
		}
	}
	for page, text := range pages(t) {
		texts[page] = strings.Join(codeOf(text, "sh"), "\n")
		for _, command := range namedIn.FindAllStringSubmatch(text, -1) {
			texts[page] += "\ncdc-relay " + command[1]
		}
	}
	for name, text := range texts {
		for _, m := range regexp.MustCompile(`(?m)(?:^|[^-\w])cdc-relay ([a-z]+(?: [a-z][a-z-]*)?)([^\n|#]*)`).FindAllStringSubmatch(text, -1) {
			words := strings.Fields(m[1])
			command := app.Command(words[0])
			if command == nil || strings.Contains(m[0], "docker") {
				continue // the name of a unit or an image
			}
			path := words[0]
			for _, sub := range command.Subcommands {
				if len(words) > 1 && sub.Name == words[1] {
					path = strings.Join(words, " ")
				}
			}
			for _, f := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(takersOf(f[1]), path) {
					t.Errorf("%s: cdc-relay %s takes no --%s", name, path, f[1])
				}
			}
		}
	}
}

// runCommands runs each line of a page with this beginning, parsed as a shell does.
func runCommands(t *testing.T, env environment, page, begins string) (ran int) {
	t.Helper()
	for _, block := range blocks(t, page, "sh") {
		for line := range strings.SplitSeq(strings.ReplaceAll(block, "\\\n", " "), "\n") {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, begins) {
				continue
			}
			words, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+strings.TrimPrefix(line, "cdc-relay ")).Output()
			must(t, err)
			want(t, cdcRelay(t, env, strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")...), exitDone)
			ran++
		}
	}
	return ran
}

// The commands and the SQL for a move from other outboxes run as written, while the application writes as before.
func TestCommandsOfTheAdoptPageRun(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	execute(t, conn, `CREATE TABLE "OutboxMessage" ("SequenceNumber" bigserial PRIMARY KEY, "MessageId" uuid NOT NULL, "ContentType" varchar(256) NOT NULL,
			"MessageType" text NOT NULL, "Body" text NOT NULL, "SentTime" timestamptz NOT NULL, "EnqueueTime" timestamptz);
		CREATE TABLE events (id bigserial PRIMARY KEY, topic text, customer text, body jsonb, sent_at timestamptz);
		CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb);
		CREATE TABLE celery_outbox (id bigserial PRIMARY KEY, created_at timestamptz, task_id text, task_name text, args jsonb, kwargs jsonb, options jsonb);
		CREATE TABLE watermill_orders ("offset" bigserial, uuid varchar(36), created_at timestamp, payload json, metadata json, transaction_id xid8, PRIMARY KEY (transaction_id, "offset"));
		CREATE SCHEMA cap;
		CREATE TABLE cap.published ("Id" bigint PRIMARY KEY, "Version" varchar(20), "Name" varchar(200), "Content" text, "Retries" int, "Added" timestamp, "ExpiresAt" timestamp, "StatusName" varchar(50));
		CREATE TABLE outbox_record (id varchar(255) PRIMARY KEY, status varchar(20), record_key varchar(255), record_type varchar(255), payload text, context text, created_at timestamptz,
			failure_count int, next_retry_at timestamptz, handler_id varchar(1000));
		CREATE TABLE celery_outbox_dead_letter (LIKE celery_outbox INCLUDING ALL, retries smallint, dead_at timestamptz, failure_reason text);
		INSERT INTO celery_outbox_dead_letter (created_at, task_id, task_name, args, kwargs, options, retries)
			VALUES (now(), 'a', 'shop.add', '[]', '{}', '{}', 5), (now(), 'b', 'other', '[]', '{}', '{}', 5)`)
	const event = `INSERT INTO events (topic, customer, body) VALUES ('orders.created', 'c7', '{"order_id": 42}')`
	const debezium = `INSERT INTO outboxevent VALUES (gen_random_uuid(), 'Order', '42', 'OrderCreated', '{"id": 42}')`
	execute(t, conn, event)
	execute(t, conn, debezium) // this row counts as sent
	if ran := runCommands(t, env, "adopt.md", "cdc-relay adopt"); ran != 11 {
		t.Errorf("%d commands were found", ran)
	}
	execute(t, conn, `INSERT INTO celery_outbox_dead_letter (created_at, task_id, task_name, args, kwargs, options) VALUES (now(), 'c', 'stays', '[]', '{}', '{}')`)
	execute(t, conn, event) // inserted after --undo
	execute(t, conn, debezium)
	for _, sql := range blocks(t, "adopt.md", "sql") {
		execute(t, conn, sql)
	}
	got := query[string](t, conn, `SELECT string_agg(concat_ws(' ', exchange, routing_key, ordering_key, payload, properties ->> 'type'), ';' ORDER BY id)
		FROM outbox WHERE headers -> 'task' IS NULL`)
	if wanted := `events orders.created c7 {"order_id": 42};outbox.event.Order Order:42 {"id": 42} OrderCreated`; got != wanted {
		t.Errorf("got  %s\nwant %s", got, wanted)
	}
	got = query[string](t, conn, `SELECT headers ->> 'task' || attempts || (SELECT string_agg(task_name, ',' ORDER BY id) FROM celery_outbox_dead_letter) FROM outbox WHERE headers ? 'task'`)
	if got != "shop.add5other,stays" {
		t.Errorf("old dead letters: got %s", got)
	}
	wantValue(t, conn, "1 1", `SELECT (SELECT count(*) FROM events) || ' ' || (SELECT count(*) FROM outboxevent)`)
	runCommands(t, env, "adopt.md", "cdc-relay adopt --from events") // the page: a second adoption takes what --undo left
	wantValue(t, conn, 0, "SELECT count(*) FROM events")
}

// The commands, the SQL and the Go of the testing page run as written; the Go code is that of the package's examples.
func TestCommandsOfTheTestingPageRun(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	if ran := runCommands(t, env, "testing.md", "cdc-relay setup"); ran != 1 {
		t.Fatalf("%d commands", ran)
	}
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('before', '1')`)
	for _, sql := range blocks(t, "testing.md", "sql") {
		begin, rest, _ := strings.Cut(sql, "SELECT ")
		read, end, found := strings.Cut(rest, ";\n")
		if !found {
			t.Fatalf("no SELECT and ROLLBACK in %s", sql)
		}
		execute(t, conn, begin)
		wantValue(t, conn, `orders.confirmed {"order_id": 42}`,
			`SELECT string_agg(routing_key || ' ' || payload, ',') FROM (SELECT `+read+`) r`)
		execute(t, conn, end)
	}
	if ran := runCommands(t, env, "testing.md", "cdc-relay "); ran != 4 {
		t.Fatalf("%d commands", ran)
	}
	wantValue(t, conn, 0, `SELECT count(*) FROM outbox`)
	examples, err := os.ReadFile("../../outboxtest/example_test.go")
	must(t, err)
	unindented := regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(string(examples), "")
	for _, code := range blocks(t, "testing.md", "go") {
		if !strings.Contains(unindented, regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")) {
			t.Errorf("outboxtest/example_test.go does not have\n%s", code)
		}
	}
}

// The SQL and the commands of these pages run as written.
func TestCommandsOfThePagesRun(t *testing.T) {
	for page, test := range map[string]struct {
		command string
		rows    int
	}{
		"ordering-keys.md":      {"cdc-relay keys", 1},
		"scheduled-messages.md": {"cdc-relay list", 1},
		"functions.md":          {"", 4},
		"consumers.md":          {"", 0},
	} {
		env, conn := withTables(t, "--mode", "poll", "--functions")
		env["CDC_RELAY_MODE"] = "poll"
		for _, sql := range blocks(t, page, "sql") {
			execute(t, conn, strings.ReplaceAll(sql, "$1", "gen_random_uuid()"))
		}
		if n := query[int](t, conn, "SELECT count(*) FROM outbox"); n != test.rows {
			t.Errorf("docs/%s: %d messages, want %d", page, n, test.rows)
		}
		if test.command != "" && runCommands(t, env, page, test.command) != 1 {
			t.Errorf("docs/%s: not one command begins with %s", page, test.command)
		}
	}
}

// The SQL and the commands of the recipes run as written, except "run", and those of RabbitMQ. The table is renamed last.
func TestCommandsOfTheRecipesRun(t *testing.T) {
	env, conn := fresh(t)
	env["CDC_RELAY_MODE"] = "poll" // no slot: the page gives it a name, and slots belong to the whole server
	want(t, cdcRelay(t, env, "setup", "--keep-published", "168h"), exitDone)
	rename := ""
	for _, sql := range append(blocks(t, "recipes.md", "sql"), blocks(t, "sizing.md", "sql")[0]) {
		if strings.Contains(sql, "RENAME") {
			rename = sql
		}
		if strings.Contains(sql, "RENAME") || strings.Contains(sql, "TRUNCATE") {
			continue
		}
		execute(t, conn, sql)
	}
	for range 2 { // the unique index rejects the second one
		execute(t, conn, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('claim', json_build_object('x', repeat('x', 1200000)), '{"once": 7}') ON CONFLICT DO NOTHING`)
	}
	// Those for Protobuf, CloudEvents, LavinMQ, a unique key and a large body.
	wantValue(t, conn, 5, "SELECT count(*) FROM outbox")
	claimed := `SELECT count(*) FROM outbox JOIN large_bodies b ON payload ->> 'claim' = b.message_id::text WHERE length(body ->> 'x') = 1200000`
	wantValue(t, conn, 1, claimed)
	for _, begins := range []string{"cdc-relay setup", "cdc-relay resend --state published"} {
		if ran := runCommands(t, env, "recipes.md", begins); ran != 1 {
			t.Errorf("%d commands begin with %s", ran, begins)
		}
	}
	wantValue(t, conn, 0, "SELECT count(*) FROM billing.outbox")
	execute(t, conn, rename)
	wantOutput(t, cdcRelay(t, env, "setup", "--table", "messages"), "version 1, nothing to do")
	wantOutput(t, cdcRelay(t, env, "drain", "--table", "messages", "--publisher", "stdout"), "shop.order.created")
}

// headings returns the anchors that GitHub gives the headings of a text.
func headings(text string) map[string]bool {
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	found := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		title := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(heading[1], "$1")
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(title), "")
		anchor := strings.ReplaceAll(name, " ", "-")
		for n := 1; found[anchor]; n++ {
			anchor = strings.ReplaceAll(name, " ", "-") + "-" + strconv.Itoa(n)
		}
		found[anchor] = true
	}
	return found
}

// The links of every Markdown file of the repository lead to files and headings that exist.
func TestLinkedFilesAndHeadingsExist(t *testing.T) {
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	list.Dir = "../.."
	names, err := list.Output()
	if err != nil {
		t.Skipf("it is no checkout of git: %v", err)
	}
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	checked := 0
	for _, name := range strings.Fields(string(names)) {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		must(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(code.ReplaceAllString(string(text), ""), -1) {
			path, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(path, ":") || strings.HasPrefix(path, "/") { // of another site, or of ours: test/site checks those
				continue
			}
			checked++
			target := filepath.Join("../..", name)
			if path != "" {
				target = filepath.Join(filepath.Dir(target), path)
			}
			switch text, err := os.ReadFile(target); {
			case os.IsNotExist(err):
				t.Errorf("%s: there is no file %s", name, link[1])
			case anchor != "" && !headings(string(text))[anchor]:
				t.Errorf("%s: there is no heading %s", name, link[1])
			}
		}
	}
	if checked < 300 {
		t.Errorf("only %d links were found", checked)
	}
}
