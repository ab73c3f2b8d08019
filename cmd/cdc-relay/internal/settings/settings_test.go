package settings_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// shop are the settings of one command.
type shop struct {
	url     string
	open    bool
	size    int
	wait    time.Duration
	format  string
	pattern string
	urlFile string
	// elsewhere and also are of another command.
	elsewhere int
	also      bool
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
	return []settings.Setting[shop]{
		{
			Info: settings.Info{Name: "url", Placeholder: "URL"},
			Set:  func(s *shop, text string) error { s.url = text; return nil },
		},
		{
			Info: settings.Info{Name: "config", Placeholder: "FILE", NotInFile: true},
			Set:  func(*shop, string) error { return nil },
		},
		settings.FlagOnly(settings.Switch("open", "Open.", func(s *shop) *bool { return &s.open })),
		settings.Number("size", "3", "The size.", 1, 9, func(s *shop) *int { return &s.size }),
		settings.Duration("wait", "1s", "The wait.", func(s *shop) *time.Duration { return &s.wait }),
		format(),
		{
			Info: settings.Info{Name: "pattern", Placeholder: "TEXT", MayBeEmpty: true, Repeats: ","},
			Set:  func(s *shop, text string) error { s.pattern = text; return nil },
		},
		settings.SecretFile("url", func(s *shop, file string) { s.urlFile = file }),
		settings.Int("elsewhere", "", "Of another command.", func(s *shop) *int { return &s.elsewhere }),
		settings.FlagOnly(settings.Switch("all", "All.", func(s *shop) *bool { return &s.open })),
		settings.Everywhere(settings.Switch("also", "Also.", func(s *shop) *bool { return &s.also })),
	}
}

// read reads the settings of a command of a program that also has other settings.
func read(t *testing.T, env map[string]string, args ...string) (shop, *settings.Input, error) {
	t.Helper()
	r := &settings.Reader[shop]{
		Prefix:    "APP_",
		LookupEnv: func(name string) (string, bool) { text, ok := env[name]; return text, ok },
		FileFlag:  "config",
		All:       all(),
	}
	target := shop{size: 3, wait: time.Second, format: "table"}
	var in *settings.Input
	var err error
	command := &cli.Command{Name: "sell", Flags: settings.Flags(r, all()[:7]...), Action: func(c *cli.Context) error {
		in, err = r.Read(c.Command.Flags, &target)
		return nil
	}}
	app := &cli.App{Commands: []*cli.Command{command}}
	services.Must(t, app.Run(append([]string{"app", "sell"}, args...)))
	return target, in, err
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.yaml")
	services.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestAFlagOverridesTheEnvironmentAndThatTheFile(t *testing.T) {
	file := write(t, "size: 1\nwait: 1m\nformat: json\nelsewhere: 5\n")
	env := map[string]string{
		"APP_CONFIG":  file,
		"APP_SIZE":    "2",
		"APP_WAIT":    "2m",
		"APP_OPEN":    "true",
		"APP_URL":     " http://h\r\n", // a URL ends before the white space
		"APP_PATTERN": "", "APP_ELSEWHERE": "x", "APP_ALSO": "true",
	}
	got, in, err := read(t, env, "--size", "4", "--pattern", "a", "--pattern", "b")
	want := shop{url: "http://h", size: 4, wait: 2 * time.Minute, format: "json", pattern: "a,b", elsewhere: 5, also: true}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	places := map[string]settings.Value{
		"config":    {Text: file, Source: settings.FromEnvironment, Place: "APP_CONFIG"},
		"url":       {Text: " http://h\r\n", Source: settings.FromEnvironment, Place: "APP_URL"},
		"size":      {Text: "4", Source: settings.FromFlag, Place: "--size"},
		"wait":      {Text: "2m", Source: settings.FromEnvironment, Place: "APP_WAIT"},
		"format":    {Text: "json", Source: settings.FromFile, Place: file + ":3"},
		"elsewhere": {Text: "5", Source: settings.FromFile, Place: file + ":4"},
		"also":      {Text: "true", Source: settings.FromEnvironment, Place: "APP_ALSO"},
		"pattern":   {Text: "a,b", Source: settings.FromFlag, Place: "--pattern"},
	}
	if !reflect.DeepEqual(in.Values, places) {
		t.Errorf("got %v", in.Values)
	}
}

func TestEachMistakeNamesItsPlace(t *testing.T) {
	file := write(t, "size: 10\nelsewhere: x\nsiz: 1\nopen: true\nwait: [1s]\nsize: 1\nconfig: x\nformat:\n")
	_, in, err := read(t, map[string]string{"APP_WAIT": "soon"}, "--config", file)
	want := `FILE:1: size: 10: want 1 to 9
FILE:2: elsewhere: "x": want a whole number
FILE:3: unknown key "siz", did you mean "size"?
FILE:4: open can only be given as a flag
FILE:5: wait: want one value
FILE:6: size is already in line 1
FILE:7: unknown key "config"; the keys are the names of the flags
FILE:8: format has no value (write '' for an empty one)
--wait (from APP_WAIT): "soon": want a duration with its unit, such as 500ms, 10s, 5m, 1h or 7d`
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
	if err != nil || got.urlFile != file || got.url != "" || in.Values["url"] != from {
		t.Errorf("got %+v, %v", got, err)
	}
	_, _, err = read(t, map[string]string{"APP_URL": "http://x", "APP_URL_FILE": file})
	if err == nil || !strings.HasPrefix(err.Error(), "--url and --url-file are both given in one place") {
		t.Errorf("got %v", err)
	}
	// A flag overrides the environment, also if one is the value and the other its file.
	got, in, err = read(t, map[string]string{"APP_URL": "http://x"}, "--url-file", file)
	if err != nil || got.urlFile != file || in.Values["url"] != from {
		t.Errorf("got %+v, %v", got, err)
	}
	got, in, err = read(t, map[string]string{"APP_URL_FILE": file}, "--url", "http://x")
	if err != nil || got.urlFile != "" || got.url != "http://x" || in.Values["url"].Source != settings.FromFlag {
		t.Errorf("got %+v, %v", got, err)
	}
	_, _, err = read(t, nil, "--url-file", write(t, strings.Repeat("x", secret.Most+1)))
	if err == nil || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("got %v", err)
	}
}

func TestDurationsAndTimesAreParsed(t *testing.T) {
	for text, want := range map[string]string{
		"7d": "168h0m0s", "2w": "336h0m0s", "1d12h": "36h0m0s", "1w1d1h1m": "193h1m0s", "90m": "1h30m0s", "0d": "0s",
		"0s": "0s", "1.5h": "1h30m0s", "-1h": "-1h0m0s", "106751d": "2562024h0m0s", "106752d": "", "15251w": "",
		"106751d24h": "", "d": "", "": "", "1d-2h": "", "1d+2h": "", "1h2d": "", "1d2d": "", "1d2w": "", "1D": "",
		"1 d": "", "1d 2h": "", "+1d": "", "0x1d": "", "1_0d": "", "1e1d": "", "7days": "", "٧d": "",
	} {
		got, err := settings.ParseDuration(text)
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("%q: got %s, %v; want %s", text, got, err, want)
		}
	}
	const wrong = "wrong"
	for text, want := range map[string]string{
		"2024-11-01": "2024-11-01T00:00:00Z", "2024-11-01T10:00Z": "2024-11-01T10:00:00Z",
		"2024-11-01T10:00:00Z": "2024-11-01T10:00:00Z", "2024-11-01T10:00:00+02:00": "2024-11-01T08:00:00Z",
		"2024-11-01 10:00:00Z": "2024-11-01T10:00:00Z", "2024-11-01T10:00:00.5Z": "2024-11-01T10:00:00.5Z",
		"2024-11-01 10:00:00.25+00": "2024-11-01T10:00:00.25Z", "2024-11-01 10:00-0530": "2024-11-01T15:30:00Z",
		"2024-03-31T02:30+01:00": "2024-03-31T01:30:00Z", "2024-10-27T02:30+02:00": "2024-10-27T00:30:00Z",
		"2024-10-27T02:30+01:00": "2024-10-27T01:30:00Z", "2024-02-29": "2024-02-29T00:00:00Z",
		"0001-01-01": "0001-01-01T00:00:00Z", "0000-01-01": "0000-01-01T00:00:00Z", "2024-11-01T10:00": wrong,
		"2024-11-01 10:00:00": wrong, "2023-02-29": wrong, "2024-11-01T24:00Z": wrong, "2024-11-01T10:60Z": wrong,
		"2024-11-01T10:00:60Z": wrong, "2024-11-01T10:00+25:00": wrong, "2024-11-01T10:00 Europe/Berlin": wrong,
		"2024-11-01T10:00CET": wrong, "2024-11-1": wrong, "24-11-01": wrong, "-2024-11-01": wrong,
		"20240-11-01": wrong, "2024-11-01Z": wrong, "2024-11-01T": wrong, "9999-12-31": wrong, "infinity": wrong,
		"-infinity": wrong, "now": wrong, "today": wrong, "1700000000": wrong, "2024-11-01,": wrong,
		" 2024-11-01": wrong, "2024‑11‑01": wrong, "99999999999d": wrong, "0d": wrong, "-1d": wrong,
	} {
		age, at, err := settings.ParseMoment(text)
		if want == wrong {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
				t.Errorf("%q: got %s, %v, %v", text, age, at, err)
			}
			continue
		}
		if err != nil || at == nil || age != 0 || at.UTC().Format("2006-01-02T15:04:05.999Z07:00") != want {
			t.Errorf("%q: got %v, %v; want %s", text, at, err, want)
		}
	}
}

// An accepted text is either an age of more than zero or a time that has passed.
func FuzzParseMoment(f *testing.F) {
	for _, text := range []string{
		"7d", "1d12h", "2024-11-01", "2024-11-01T10:00Z", "2024-11-01 10:00:00.5+02", "99999999999d",
		"106751d23h47m16s", "infinity",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		age, at, err := settings.ParseMoment(text)
		if err == nil && (age > 0) == (at != nil) {
			t.Errorf("%q: %s and %v", text, age, at)
		}
		if err == nil && (age < 0 || at != nil && at.After(time.Now())) {
			t.Errorf("%q: %s and %v", text, age, at)
		}
	})
}
