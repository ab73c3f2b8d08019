package settings_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// server is a group of settings that several commands share.
type server struct{ url string }

// shop are the settings of one command.
type shop struct {
	server  server
	open    bool
	size    int
	wait    time.Duration
	format  string
	pattern string
	urlFile string
}

func format() settings.Setting[shop] {
	return settings.Setting[shop]{
		Info: settings.Info{Name: "format", Placeholder: "table|json", Default: "table"},
		Set: func(s *shop, text string) error {
			s.format = text
			return settings.OneOf(text, "table", "json")
		},
	}
}

func all() []settings.Setting[shop] {
	url := settings.Setting[server]{
		Info: settings.Info{Name: "url", Placeholder: "URL"},
		Set:  func(s *server, text string) error { s.url = text; return nil },
	}
	own := []settings.Setting[shop]{
		{
			Info: settings.Info{Name: "config", Placeholder: "FILE", NotInFile: true},
			Set:  func(*shop, string) error { return nil },
		},
		settings.SecretFile("url", func(s *shop, file string) { s.urlFile = file }),
		settings.FlagOnly(settings.Switch("open", "Open.", func(s *shop) *bool { return &s.open })),
		settings.Number("size", "3", "The size.", 1, 9, func(s *shop) *int { return &s.size }),
		settings.Duration("wait", "1s", "The wait.", func(s *shop) *time.Duration { return &s.wait }),
		format(),
		settings.Shorthand("json", format(), "json"),
		{
			Info: settings.Info{Name: "pattern", Placeholder: "TEXT", MayBeEmpty: true, Repeats: true},
			Set:  func(s *shop, text string) error { s.pattern = text; return nil },
		},
	}
	return append(settings.In(func(s *shop) *server { return &s.server }, []settings.Setting[server]{url}), own...)
}

// read reads the settings of a command of a program that also has the setting "elsewhere".
func read(t *testing.T, env map[string]string, args ...string) (shop, *settings.Input, error) {
	t.Helper()
	type other struct{ n int }
	elsewhere := settings.Int("elsewhere", "", "Of another command.", func(o *other) *int { return &o.n })
	r := &settings.Reader{
		Prefix:    "APP_",
		LookupEnv: func(name string) (string, bool) { text, ok := env[name]; return text, ok },
		FileFlag:  "config",
		Known:     append(settings.KnownOf(all()), elsewhere),
	}
	target := shop{size: 3, wait: time.Second, format: "table"}
	var in *settings.Input
	var err error
	command := &cli.Command{Name: "sell", Flags: settings.Flags(r, all()...), Action: func(c *cli.Context) error {
		in, err = settings.Read(r, c.Command.Flags, all(), &target)
		return nil
	}}
	app := &cli.App{Commands: []*cli.Command{command}}
	if err := app.Run(append([]string{"app", "sell"}, args...)); err != nil {
		t.Fatal(err)
	}
	return target, in, err
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAFlagOverridesTheEnvironmentAndThatTheFile(t *testing.T) {
	file := write(t, "size: 1\nwait: 1m\nformat: json\nelsewhere: 5\n")
	env := map[string]string{
		"APP_CONFIG":  file,
		"APP_SIZE":    "2",
		"APP_WAIT":    "2m",
		"APP_OPEN":    "true",
		"APP_PATTERN": "",
	}
	got, in, err := read(t, env, "--size", "4", "--pattern", "a", "--pattern", "b")
	want := shop{size: 4, wait: 2 * time.Minute, format: "json", pattern: "a,b"}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	places := map[string]settings.Value{
		"config":    {Text: file, Source: settings.FromEnvironment, Place: "APP_CONFIG"},
		"size":      {Text: "4", Source: settings.FromFlag, Place: "--size"},
		"wait":      {Text: "2m", Source: settings.FromEnvironment, Place: "APP_WAIT"},
		"format":    {Text: "json", Source: settings.FromFile, Place: file + ":3"},
		"elsewhere": {Text: "5", Source: settings.FromFile, Place: file + ":4"},
		"pattern":   {Text: "a,b", Source: settings.FromFlag, Place: "--pattern"},
	}
	if !reflect.DeepEqual(in.Values, places) {
		t.Errorf("got %v", in.Values)
	}
}

func TestEachMistakeNamesItsPlace(t *testing.T) {
	file := write(t, "size: 10\nelsewhere: x\nsiz: 1\nopen: true\nwait: [1s]\nsize: 1\n")
	_, in, err := read(t, map[string]string{"APP_WAIT": "soon"}, "--config", file, "--format", "table", "--json")
	want := `FILE:1: size: 10: want 1 to 9
FILE:2: elsewhere: "x": want a whole number
FILE:3: unknown key "siz", did you mean "size"?
FILE:4: open can only be given as a flag
FILE:5: wait: want one value
FILE:6: size stands in line 1 already
--wait (from APP_WAIT): "soon": want a duration with its unit, such as 500ms, 10s, 5m, 1h or 7d
--json: contradicts --format table`
	if err == nil || strings.ReplaceAll(err.Error(), file, "FILE") != want || in == nil {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	for text, says := range map[string]string{
		"a: [":         "not valid YAML",
		"- a":          "want lines of the form",
		"a: 1\n---\n1": "more than one YAML document",
	} {
		if _, in, err := read(t, nil, "--config", write(t, text)); in != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if _, in, err := read(t, nil, "--config", "/nowhere"); in != nil || err == nil {
		t.Errorf("got %v, %v", in, err)
	}
}

func TestASecretComesFromItsFile(t *testing.T) {
	file := write(t, "http://u:s3cr3t@h\r\n")
	got, in, err := read(t, nil, "--url-file", file)
	from := settings.Value{Text: "http://u:s3cr3t@h", Source: settings.FromFile, Place: file}
	if err != nil || got.urlFile != file || got.server.url != "" || in.Values["url"] != from {
		t.Errorf("got %+v, %v", got, err)
	}
	_, _, err = read(t, map[string]string{"APP_URL": "x"}, "--url-file", file)
	if err == nil || !strings.HasPrefix(err.Error(), "--url and --url-file are both given") {
		t.Errorf("got %v", err)
	}
	_, _, err = read(t, nil, "--url-file", write(t, strings.Repeat("x", secret.Most+1)))
	if err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("got %v", err)
	}
}

func TestUnknownVariablesGetAdvice(t *testing.T) {
	r := &settings.Reader{Prefix: "APP_", Known: settings.KnownOf(all())}
	pairs := []string{"APP_SIZ=1", "APP_OPEN=1", "APP_ALL=1", "APP_QQQQQ=1", "APP_SIZE=1", "OTHER=1", "APP_TEST_X=1"}
	foreign := func(name string) bool { return strings.HasPrefix(name, "TEST_") }
	got := r.UnknownVariables(pairs, []string{"all"}, foreign, "see the manual")
	want := []settings.Unknown{
		{Variable: "APP_ALL", Advice: "--all can only be given as a flag"},
		{Variable: "APP_OPEN", Advice: "--open can only be given as a flag"},
		{Variable: "APP_QQQQQ", Advice: "it is no setting; see the manual"},
		{Variable: "APP_SIZ", Advice: "did you mean APP_SIZE?"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestEffectiveShowsTheDefaultAndMasksTheValue(t *testing.T) {
	mask := func(_, text string) string { return strings.ReplaceAll(text, "s3cr3t", "***") }
	given := map[string]settings.Value{"url": {Text: "u:s3cr3t", Source: settings.FromFlag, Place: "--url"}}
	for _, test := range []struct{ name, value, source string }{
		{"url", "u:***", settings.FromFlag}, {"size", "3", settings.ByDefault}, {"open", "false", settings.ByDefault},
	} {
		shown := settings.Effective(settings.Pick(all(), test.name)[0].Info, given, mask)
		if *shown.Value != test.value || shown.Source != test.source {
			t.Errorf("%s: got %v", test.name, shown)
		}
	}
}

// addresses are two settings. The flag of each is --address on its own command, and the first one had that name.
func addresses() []settings.Setting[shop] {
	return []settings.Setting[shop]{
		{
			Info: settings.Info{Name: "config", Placeholder: "FILE", NotInFile: true},
			Set:  func(*shop, string) error { return nil },
		},
		{
			Info: settings.Info{Name: "shop-address", Placeholder: "TEXT", Formerly: []string{"address"}},
			Set:  func(s *shop, text string) error { s.pattern = text; return nil },
		},
		{
			Info: settings.Info{Name: "bank-address", Placeholder: "TEXT"},
			Set:  func(s *shop, text string) error { s.format = text; return nil },
		},
	}
}

func TestAFormerNameAndAnotherSpellingWork(t *testing.T) {
	old, both := write(t, "address: a\n"), write(t, "address: a\nshop-address: b\n")
	for _, test := range []struct {
		of   string // the command
		env  map[string]string
		args []string
		shop string
		bank string
		// place is where the address of the shop comes from, former where its former name is.
		place, former, err string
	}{
		{of: "shop", args: []string{"--address", "a"}, shop: "a", place: "--address"},
		{of: "shop", args: []string{"--shop-address", "a"}, shop: "a", place: "--shop-address"},
		{of: "shop", env: map[string]string{"APP_ADDRESS": "a"}, shop: "a", place: "APP_ADDRESS", former: "APP_ADDRESS"},
		{
			of: "shop", env: map[string]string{"APP_ADDRESS": "a", "APP_SHOP_ADDRESS": "b"}, shop: "b",
			place: "APP_SHOP_ADDRESS",
		},
		{of: "shop", args: []string{"--config", old}, shop: "a", place: old + ":1", former: old + ":1: address"},
		{
			of: "shop", args: []string{"--config", both}, shop: "a", place: both + ":1", former: both + ":1: address",
			err: both + ":2: shop-address stands in line 1 already",
		},
		{of: "bank", args: []string{"--address", "a"}, bank: "a"},
		{of: "bank", args: []string{"--bank-address", "a"}, bank: "a"},
		{of: "bank", env: map[string]string{"APP_ADDRESS": "a"}, former: "APP_ADDRESS"},
		{of: "bank", args: []string{"--config", old}, shop: "a", place: old + ":1", former: old + ":1: address"},
	} {
		r := &settings.Reader{
			Prefix:    "APP_",
			LookupEnv: func(name string) (string, bool) { text, ok := test.env[name]; return text, ok },
			FileFlag:  "config",
			Known:     settings.KnownOf(addresses()),
		}
		flags := settings.Flags(r, settings.Pick(addresses(), "config", test.of+"-address")...)
		settings.FlagsOf(flags)[1].Spelling = "address"
		var got shop
		command := &cli.Command{Name: "c", Flags: flags, Action: func(c *cli.Context) error {
			in, err := settings.Read(r, c.Command.Flags, addresses(), &got)
			former := ""
			if len(in.Former) > 0 {
				former = in.Former[0].Place
			}
			if (err != nil || test.err != "") && (err == nil || err.Error() != test.err) {
				t.Errorf("%s %v %v: got the error %v", test.of, test.env, test.args, err)
			}
			if place := in.Values["shop-address"].Place; place != test.place || former != test.former {
				t.Errorf("%s %v %v: from %q, former %q", test.of, test.env, test.args, place, former)
			}
			return nil
		}}
		if err := (&cli.App{Commands: []*cli.Command{command}}).Run(append([]string{"app", "c"}, test.args...)); err != nil {
			t.Fatal(err)
		}
		if got.pattern != test.shop || got.format != test.bank {
			t.Errorf("%s %v %v: got %q and %q", test.of, test.env, test.args, got.pattern, got.format)
		}
		if names := flags[1].Names(); !slices.Equal(names, []string{"address"}) {
			t.Errorf("%s: the help page and completion have %v", test.of, names)
		}
	}
}

func TestArgumentsStandBetweenFlags(t *testing.T) {
	r := &settings.Reader{Prefix: "APP_"}
	flags := settings.Flags(r, all()...)
	got, err := settings.Arguments("sell", flags, []string{"a", "--size", "5", "b", "-", "--open"})
	if err != nil || !slices.Equal(got, []string{"a", "b", "-"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := settings.Arguments("sell", flags, []string{"a", "--siz"}); err == nil {
		t.Error("an unknown flag is no error")
	}
}
