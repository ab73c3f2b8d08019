package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/notice"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/relay"
)

// descriptions is a registry that records the descriptions of the collectors. A scrape would show a counter with labels
// only after its first event, and a sampled metric only with a database.
type descriptions struct {
	prometheus.Registerer
	names map[string]bool
}

func (d descriptions) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for desc := range descs {
		d.names[name.FindStringSubmatch(desc.String())[1]] = true
	}
	return d.Registerer.Register(c)
}

// registered returns the names of all metrics that "run" can show, without those of Go.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	registry := descriptions{newRegistry(nil), map[string]bool{"cdc_relay_build_info": true, "cdc_relay_log_lines_dropped_total": true}}
	must(t, registry.Register(notice.NewCounter()))
	cfg := defaultConfig()
	cfg.relay.DatabaseURL = "postgres://localhost/shop"
	r, err := relay.New(cfg.relay, stdout.New(stdout.Config{Writer: io.Discard}), slog.New(slog.DiscardHandler), registry)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, r.Run(ctx)) // releases what New opened
	return registry.names
}

// levelOf are the functions and types that pass an event to the log, besides the methods of slog.Logger.
var levelOf = map[string]string{
	"Info": "INFO", "Warn": "WARN", "Error": "ERROR",
	"Report": "WARN", "Over": "INFO", "announce": "INFO", // of outagelog.Log and relay.streamer
	"Change": "WARN", // of replication, logged by relay.streamer
}

// sources returns the files of the program and its packages, without tests, by name.
func sources(t *testing.T, files *token.FileSet) map[string]*ast.File {
	t.Helper()
	parsed := make(map[string]*ast.File)
	for _, folder := range []string{"cmd", "decode", "fallback", "internal", "migrations", "outbox", "publish", "relay", "replication", "store", "tracing"} {
		err := filepath.WalkDir("../../"+folder, func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && entry.Name() == "services" { // only tests use it
				return fs.SkipDir
			}
			if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				parsed[name], err = parser.ParseFile(files, name, nil, parser.ParseComments)
			}
			return err
		})
		must(t, err)
	}
	return parsed
}

// literals returns the strings of a file by their lines.
func literals(t *testing.T, files *token.FileSet, file *ast.File) map[int]string {
	t.Helper()
	all := make(map[int]string)
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, is := n.(*ast.BasicLit); is && literal.Kind == token.STRING {
			text, err := strconv.Unquote(literal.Value)
			must(t, err)
			all[files.Position(literal.Pos()).Line] += " " + text
		}
		return true
	})
	return all
}

// madeOf returns what a call or a literal names, with its arguments or elements.
func madeOf(n ast.Node) (name string, args []ast.Expr) {
	switch n := n.(type) {
	case *ast.CallExpr:
		return types.ExprString(n.Fun), n.Args
	case *ast.CompositeLit:
		return types.ExprString(n.Type), n.Elts
	}
	return "", nil
}

// textsOf returns the texts of expressions and of all their parts.
func textsOf(args []ast.Expr) (texts []string) {
	for _, arg := range args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if part, ok := n.(ast.Expr); ok {
				texts = append(texts, types.ExprString(part))
			}
			return true
		})
	}
	return texts
}

// loggedEvents returns all events in the code, each with its levels. Each line at INFO and above must have an event.
func loggedEvents(t *testing.T) (all []string) {
	t.Helper()
	names, levels, files := make(map[string]string), make(map[string]map[string]bool), token.NewFileSet()
	constants, err := parser.ParseFile(files, "../../internal/event/event.go", nil, 0)
	must(t, err)
	ast.Inspect(constants, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(name) || levels[name] != nil {
				t.Errorf("%s = %q: want words with _ between them, and each name once", v.Names[0].Name, name)
			}
			names["event."+v.Names[0].Name], levels[name] = name, make(map[string]bool)
		}
		return true
	})
	for _, file := range sources(t, files) {
		ast.Inspect(file, func(n ast.Node) bool {
			called, args := madeOf(n)
			name := called[strings.LastIndex(called, ".")+1:]
			level := levelOf[name]
			if level == "" || len(args) == 0 || called == "http.Error" || called == "settings.Info" {
				return true // it logs nothing
			}
			texts := textsOf(args)
			for _, text := range texts {
				if name := names[text]; name != "" {
					levels[name][level] = true
				}
			}
			method := name != called && strings.EqualFold(name, level) // of slog.Logger
			if method && !slices.Contains(texts, `"event"`) {
				t.Errorf("%s: this line of the log has no event", files.Position(n.Pos()))
			}
			return true
		})
	}
	for name, at := range levels {
		if len(at) == 0 {
			t.Errorf("internal/event: nothing logs %s", name)
		}
		all = append(all, name+" "+strings.Join(slices.Sorted(maps.Keys(at)), " "))
	}
	return all
}

// documentedEvents returns those of events.md. An item can have an event and the event that ends it.
func documentedEvents(t *testing.T) (all []string) {
	t.Helper()
	for _, row := range regexp.MustCompile("(?m)^- (`[a-z_]+`(?:, `[a-z_]+`)?) \\(([A-Z, ]+)\\): ").FindAllStringSubmatch(readDoc(t, "events.md"), -1) {
		names, at := strings.Split(row[1], ", "), strings.Split(row[2], ", ")
		if len(names) != len(at) {
			t.Errorf("docs/events.md: %s have the levels %s", row[1], row[2])
			continue
		}
		for i, name := range names {
			all = append(all, strings.Trim(name, "`")+" "+at[i])
		}
	}
	return all
}
