package browser

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

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

// look finds what is in the way of people with a phone, a keyboard or a screen reader, once for each name. It saves
// pictures if requested.
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
		if folder := os.Getenv("SCREENSHOTS"); folder != "" {
			for _, scheme := range []string{"light", "dark"} {
				s.shoot(folder, fmt.Sprintf("%s-%d-%s", strings.ReplaceAll(name, " ", "-"), look.width, scheme), scheme)
			}
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
