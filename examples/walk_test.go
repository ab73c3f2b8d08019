package examples_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// walkGo walks through go/README.md as a new user does.
func walkGo(t *testing.T, bin string) {
	w := newWalk(t, "go/README.md", "go version && psql --version", bin)
	w.walk()
	w.do("go vet ./... && go test -count 1 ./...") // the tests can run again
	w.do(`test -z "$(gofmt -l .)"`)
}

// walkNode walks through node/README.md. Tests that cannot read the outbox, or reach Postgres, fail and do not hang.
func walkNode(t *testing.T, bin string) {
	w := newWalk(t, "node/README.md", "cd node && test -d node_modules && psql --version", bin)
	w.walk()
	w.do("node --test")
	for variables, want := range map[string]string{
		`CDC_RELAY_DATABASE_URL="$DATABASE_URL"`:                                                      "permission denied for table outbox",
		`CDC_RELAY_DATABASE_URL=postgres://127.0.0.1:1/shop DATABASE_URL=postgres://127.0.0.1:1/shop`: "ECONNREFUSED",
	} {
		if out, err := w.command(variables + " node --test"); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s node --test: %v\n%s", variables, err, out)
		}
	}
}

// walk is a README whose code blocks are files and commands.
type walk struct {
	*shop
	text string
}

// newWalk creates an empty folder, a database and a virtual host. The role of the README has another name here, because
// roles are shared by all databases.
func newWalk(t *testing.T, readme, needs, bin string) *walk {
	w := &walk{shop: &shop{t: t, folder: ".", env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))}}
	w.installed(needs)
	text, err := os.ReadFile(readme)
	must(t, err)
	clone, err := filepath.Abs("..")
	must(t, err)
	role := services.Name(t)
	w.text = strings.ReplaceAll(string(text), "shop_app", role)
	app, _ := w.servers(role, "secret")
	w.env = append(w.env, "CLONE="+clone, "CDC_RELAY_HTTP_ADDR=", "npm_config_prefer_offline=true", "DATABASE_URL="+app)
	t.Cleanup(func() { dropRole(t, w.owner, role) })
	w.folder = t.TempDir()
	return w
}

// block is a code block with its language.
var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// file is the comment with a name in the first line of a file.
var file = regexp.MustCompile(`^(?://|--) ([\w./]+)\n`)

// walk writes the files and runs the commands of the section "Walk", in their order, in one shell.
func (w *walk) walk() {
	_, section, found := strings.Cut(w.text, "\n## Walk")
	if !found {
		w.t.Fatal("no section Walk")
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	commands := 0
	for _, b := range block.FindAllStringSubmatch(section, -1) {
		language, text := b[1], b[2]
		if name := file.FindStringSubmatch(text); name != nil {
			script.WriteString("mkdir -p " + filepath.Dir(name[1]) + "\ncat >" + name[1] + " <<'END OF FILE'\n" + text + "END OF FILE\n")
		} else if language == "sh" && !strings.HasPrefix(text, "export ") { // the test has its own addresses
			script.WriteString(text)
			commands++
		} else if language != "sh" {
			w.t.Fatalf("a block without the name of its file:\n%s", text)
		}
	}
	if commands < 5 {
		w.t.Fatalf("found %d blocks with commands", commands)
	}
	out, err := w.command(script.String())
	if err != nil || !strings.HasSuffix(out, "\n42\n") {
		w.t.Fatalf("%v\n%s", err, out)
	}
	w.folder = filepath.Join(w.folder, "shop")
}

func dropRole(t *testing.T, owner *pgx.Conn, role string) {
	ctx := context.Background()
	if _, err := owner.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
		t.Error(err)
	}
	_ = owner.Close(ctx)
}
