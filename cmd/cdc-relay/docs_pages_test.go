package main

import (
	"errors"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pages returns the README (of the project, not the index of docs) and all pages of docs, by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(docsFolder + "*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	texts := make(map[string]string)
	for _, file := range files {
		name := filepath.Base(file)
		texts[strings.Replace(name, "README.md", "index", 1)] = readDoc(t, name)
	}
	texts["README.md"] = readDoc(t, "../README.md")
	return texts
}

// texts returns all texts for people, by name: the pages, and those outside of docs.
func texts(t *testing.T) map[string]string {
	t.Helper()
	all := pages(t)
	for _, name := range []string{"../CHANGELOG.md", "../CONTRIBUTING.md", "../SECURITY.md", "../examples/README.md", "../clients/python/README.md", "results/README.md", "results/mutants.md", "results/reliability.md", "results/track-record.md"} {
		all[name] = readDoc(t, name)
	}
	return all
}

// The docs, with their index, have at most 25,000 words, the index 450, and the glossary 25 terms.
func TestDocsStayShort(t *testing.T) {
	words := 0
	for name, text := range pages(t) {
		if name != "README.md" {
			words += len(strings.Fields(text))
		}
	}
	if n := len(strings.Fields(pages(t)["index"])); n > 450 {
		t.Errorf("docs/README.md has %d words", n)
	}
	if words > 25_000 {
		t.Errorf("docs/*.md have %d words", words)
	}
	if terms := strings.Count(pages(t)["glossary.md"], "\n- **"); terms > 25 {
		t.Errorf("the glossary has %d terms", terms)
	}
}

// prose returns the paragraphs, list items, headings and table cells of a page, without code and link targets.
func prose(text string) []string {
	text = regexp.MustCompile("(?s)```.*?```|<!--.*?-->").ReplaceAllString(text, "\n\n")
	text = regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "X")
	text = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(text, "]")
	text = regexp.MustCompile(`(?m)^ *(#+ .*|[-*] |\d+\. )`).ReplaceAllString(text, "\n\n$1")
	text = regexp.MustCompile(`(?m)^(#+ .*)$`).ReplaceAllString(text, "$1\n\n")
	text = regexp.MustCompile(`\|`).ReplaceAllString(text, "\n\n")
	return regexp.MustCompile(`\n\s*\n`).Split(text, -1)
}

// forbidden are words that docs, code and comments do not use. The reader finds the others in the manuals or in the glossary.
const forbidden = `mend(s|ed|ing)?|anew|for as long as|but for|a repeat|holder|holds? the slot|stand-bys?|stands? by|standing by|` +
	`spill(s|ed)?|get(s)? going again|comes? to itself|away|as far as|the most \w+ that|whatever|whoever|whichever|` +
	`breather|courtesy|patience|episode|settle anew`

// forbiddenToUsers has another word for RabbitMQ, which comments use for its role.
const forbiddenToUsers = `(the|a) broker`

// forbiddenInDocs are names in the code, beside the words above.
const forbiddenInDocs = forbiddenToUsers + `|repeats|refus(e|es|ed|al|als)|lease(s)?|pulse|stray|stride|quarantine|hedge`

func TestDocsUseNoForbiddenWord(t *testing.T) {
	word := regexp.MustCompile(`(?i)\b(` + forbidden + `|` + forbiddenInDocs + `)\b|(?m:^|[.;:,] )[Ww]here (a|the|an|no|it|they|there|that|all|nobody|several) `)
	for page, text := range texts(t) {
		for _, paragraph := range prose(text) {
			for _, found := range word.FindAllString(paragraph, -1) {
				t.Errorf("%s: %q in %q", page, strings.TrimSpace(found), strings.TrimSpace(paragraph))
			}
		}
	}
}

// Published names, such as messages_spilled_total, have an underscore next to the word and do not match.
func TestCodeUsesNoForbiddenWord(t *testing.T) {
	word := regexp.MustCompile(`(?i)\b(` + forbidden + `)\b`)
	wordToUsers := regexp.MustCompile(`(?i)\b(` + forbiddenToUsers + `)\b`)
	files := token.NewFileSet()
	for name, file := range sources(t, files) {
		texts := make([]string, 0, 100)
		for _, text := range literals(t, files, file) {
			texts = append(texts, text)
			if wordToUsers.MatchString(text) {
				t.Errorf("%s: RabbitMQ has another name in %s", name, text)
			}
		}
		for _, group := range file.Comments {
			texts = append(texts, group.Text())
		}
		for _, text := range texts {
			for _, found := range word.FindAllString(text, -1) {
				t.Errorf("%s: %q in %q", name, found, strings.TrimSpace(text))
			}
		}
	}
}

func TestDocsHaveNoLongSentence(t *testing.T) {
	const most = 35
	end := regexp.MustCompile(`[.!?]["*)]*(\s+|$)`)
	for page, text := range texts(t) {
		for _, paragraph := range prose(text) {
			for _, sentence := range end.Split(paragraph, -1) {
				if n := len(strings.Fields(sentence)); n > most {
					t.Errorf("%s: %d words: %s", page, n, strings.Join(strings.Fields(sentence), " "))
				}
			}
		}
	}
}

// messagesOf returns the texts in front of the colon of each item in a part of the page.
func messagesOf(t *testing.T, part string) []string {
	t.Helper()
	var all []string
	for _, item := range regexp.MustCompile("(?m)^- ((?:`[^`]+`(?:,\\s+)?)+):").FindAllStringSubmatch(part, -1) {
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(item[1], -1) {
			all = append(all, strings.Join(strings.Fields(text[1]), " "))
		}
	}
	if len(all) == 0 {
		t.Fatal("the page has no messages")
	}
	return all
}

// partsOfTroubleshooting are the chapters about the program, and the one about errors of Postgres in an application.
func partsOfTroubleshooting(t *testing.T) (program, application string) {
	t.Helper()
	program, application, found := strings.Cut(readDoc(t, "troubleshooting.md"), "## In the application")
	if !found {
		t.Fatal("docs/troubleshooting.md has no chapter about applications")
	}
	return program, application
}

// Each message of these pages stands in one string of the program, in which … is a value.
func TestPagesQuoteTheProgram(t *testing.T) {
	said, files := "", token.NewFileSet()
	for _, file := range sources(t, files) {
		for _, text := range literals(t, files, file) {
			said += strings.ReplaceAll(text, "\n", " ") + "\n"
		}
	}
	program, _ := partsOfTroubleshooting(t)
	quotes := messagesOf(t, program)
	modes := regexp.MustCompile(`\s+`).ReplaceAllString(readDoc(t, "failure-modes.md"), " ")
	inModes := 0
	for _, quote := range regexp.MustCompile("`([a-z][^`]*)`").FindAllStringSubmatch(modes, -1) {
		isName, isText := regexp.MustCompile("^[a-z]+_[a-z_]+$").MatchString(quote[1]), strings.Count(quote[1], " ") > 1
		if (isName || isText) && !strings.HasPrefix(quote[1], "cdc-relay ") {
			inModes++
			quotes = append(quotes, strings.TrimSuffix(quote[1], "_total"))
		}
	}
	for _, quote := range quotes {
		if !regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(quote), "…", ".+")).MatchString(said) {
			t.Errorf("the program never says %q", quote)
		}
	}
	if inModes < 20 {
		t.Errorf("only %d names and texts were found in docs/failure-modes.md", inModes)
	}
}

// The errors of applications are those of Postgres.
func TestTheTroubleshootingPageQuotesPostgres(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_MODE"] = "poll"
	role := newRole(t, conn, "", "LOGIN")
	insert := "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')"
	execute(t, conn, "GRANT USAGE ON SCHEMA public TO "+role+"; GRANT INSERT ON outbox TO "+role)
	said := ""
	for _, sql := range []string{
		"SET ROLE " + role + "; " + insert + " RETURNING id",
		"INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}'::text)",
		insert + "; ALTER SEQUENCE outbox_id_seq RESTART; " + insert,
	} {
		_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		failed, ok := errors.AsType[*pgconn.PgError](err)
		if !ok {
			t.Fatalf("%s: %v", sql, err)
		}
		said += failed.Message + "\n"
		execute(t, conn, "RESET ROLE")
	}
	_, application := partsOfTroubleshooting(t)
	messages := messagesOf(t, application)
	for _, message := range messages {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(message), "…", ".+")
		if !regexp.MustCompile(pattern).MatchString(said) {
			t.Errorf("docs/troubleshooting.md: Postgres does not say %q, but\n%s", message, said)
		}
	}
	if n := strings.Count(said, "\n"); len(messages) != n {
		t.Errorf("docs/troubleshooting.md has %d messages, and %d were caused", len(messages), n)
	}
}
