package browser

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// serveDocs builds the site of docs/ and serves it as GitHub Pages does: /cdc-relay/runbook is runbook.html.
func serveDocs(t *testing.T) (url, folder string) {
	t.Helper()
	folder = "../../bin/site"
	if out, err := exec.Command("../../scripts/docs", "--build").CombinedOutput(); err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) && failed.ExitCode() == 69 {
			t.Skipf("the site cannot be built here: %s", out)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	files := http.StripPrefix("/cdc-relay", http.FileServer(http.Dir(folder)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := strings.TrimPrefix(r.URL.Path, "/cdc-relay") + ".html"
		if _, err := os.Stat(filepath.Join(folder, filepath.FromSlash(page))); err == nil {
			http.ServeFile(w, r, filepath.Join(folder, filepath.FromSlash(page)))
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/cdc-relay/", folder
}

// watch reports each request to another host, and each error, as a failure at the end of the test.
func (s *site) watch() {
	s.Helper()
	var lock sync.Mutex
	var problems []string
	requests := 0
	err := chromedp.Listen(s.browser, func(event any) {
		lock.Lock()
		defer lock.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			requests++
			if !strings.HasPrefix(e.Request.URL, s.url) && !strings.HasPrefix(e.Request.URL, "data:") {
				problems = append(problems, "request to "+e.Request.URL)
			}
		case *runtime.EventExceptionThrown:
			problems = append(problems, "exception: "+e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
				problems = append(problems, "the console has a message of the type "+string(e.Type))
			}
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				problems = append(problems, e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
	must(s, err)
	s.Cleanup(func() {
		lock.Lock()
		defer lock.Unlock()
		for _, problem := range problems {
			s.Error(problem)
		}
		if requests == 0 {
			s.Error("no request was seen")
		}
	})
}

// Every page of the docs fits on a phone and a desktop in light and dark, asks no other host, and has no error.
func TestTheSiteOfTheDocs(t *testing.T) {
	url, folder := serveDocs(t)
	s := &site{T: t, url: url}
	s.startBrowser()
	s.watch()
	pages, err := filepath.Glob(folder + "/*.html")
	examples, failed := filepath.Glob(folder + "/examples/*.html")
	pages = append(pages, examples...)
	if err != nil || failed != nil || len(pages) < 40 {
		s.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(strings.TrimPrefix(page, folder+"/"), ".html")
		if name == "404" {
			continue
		}
		s.do(chromedp.Navigate(s.url+strings.TrimSuffix(name, "index")), chromedp.WaitVisible("h1"))
		for _, look := range []struct {
			width  int64
			scheme string
		}{{360, "dark"}, {1280, "light"}} {
			s.do(chromedp.EmulateViewport(look.width, 800))
			s.scheme(look.scheme)
			s.becomes(`document.documentElement.classList.contains("dark") === ` + quoted(look.scheme == "dark"))
			if get(s, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > document.documentElement.clientWidth`)) {
				s.Errorf("%s scrolls sideways at %d", name, look.width)
			}
		}
	}
	s.do(chromedp.EmulateViewport(360, 800), chromedp.Navigate(s.url+"pages"), chromedp.Click(".VPLocalNav .menu"),
		chromedp.WaitVisible(`//aside//a[normalize-space()="Runbook"]`))
}

// looks are a phone, a tablet and a desktop, light and dark. The last is that of the other steps.
var looks = []struct {
	width  int64
	scheme string
}{{390, "dark"}, {820, "light"}, {1440, "dark"}, {1280, "light"}}

// axe returns the script of axe-core in the version of package-lock.json.
func (s *site) axe() string {
	s.Helper()
	file := filepath.Join("node_modules", "axe-core", "axe.min.js")
	if _, err := os.Stat(file); err != nil {
		install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		if out, err := install.CombinedOutput(); err != nil {
			s.Fatalf("axe-core is missing: %v\n%s", err, out)
		}
	}
	script, err := os.ReadFile(file)
	must(s, err)
	return string(script)
}

// look finds what is in the way of people with a phone, a keyboard or a screen reader, once for each name.
func (s *site) look(name string) {
	s.Helper()
	if s.looked[name] {
		return
	}
	s.looked[name] = true
	get(s, chromedp.Evaluate[bool](s.axe()+`; true`))
	for _, look := range looks {
		s.do(chromedp.EmulateViewport(look.width, 800))
		s.scheme(look.scheme)
		for _, problem := range get(s, chromedp.Evaluate[[]string](audit, chromedp.EvalAwaitPromise)) {
			s.Errorf("%s at %d, %s: %s", name, look.width, look.scheme, problem)
		}
	}
}

func (s *site) scheme(name string) {
	s.Helper()
	s.do(call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	}))
}

// audit also finds pages that scroll sideways, and words that break inside.
const audit = `(async () => {
  const problems = [];
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) problems.push("the page scrolls sideways");
  for (const e of document.querySelectorAll("th, .word, .tile strong, button, nav a")) {
    const range = document.createRange();
    range.selectNodeContents(e);
    const ends = [...range.getClientRects()].filter((r) => r.width > 0).map((r) => r.bottom);
    if (Math.max(...ends) - Math.min(...ends) > 12 && !e.innerText.trim().includes(" ")) problems.push("a word breaks: " + e.innerText);
  }
  const found = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"], resultTypes: ["violations"] });
  for (const v of found.violations) for (const n of v.nodes) problems.push(v.id + ": " + n.failureSummary.replaceAll("\n", " ") + " " + n.html.slice(0, 200));
  for (const e of document.querySelectorAll(".tile strong")) if (e.scrollWidth > e.clientWidth) problems.push("a number runs out of its tile: " + e.innerText);
  for (const e of document.querySelectorAll(".plot .line")) {
    const left = e.getBoundingClientRect().left;
    for (const label of e.closest(".chart").querySelectorAll(".axis span, text")) if (label.getBoundingClientRect().right > left) problems.push("a label touches the line: " + label.textContent);
  }
  const row = document.querySelector("tbody tr");
  if (innerWidth < 640 && row && getComputedStyle(row).display === "table-row") problems.push("a row is no card");
  return problems;
})()`
