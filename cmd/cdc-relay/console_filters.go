package main

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// picked holds the values of the filter form.
type picked struct {
	Path   string
	Fields []field
	Next   string
	// Query has the filters that are set, URL-encoded.
	Query string
	// Note says why the filters may match nothing; "": they look right.
	Note string
	// Changes are the changes that apply to the selected rows.
	Changes []string
}

type field struct {
	Name, Label, Value string
	// Set: the field filters. The empty value is a filter, too.
	Set     bool
	Options []string
}

// Shown is the value in the filter form, which submits an empty text for each field without a filter.
func (f field) Shown() string {
	if !f.Set {
		return ""
	}
	return inQuotes(f.Value)
}

// inQuotes puts a value in quotes if it would look empty or different without them.
func inQuotes(value string) string {
	if value == "" || value != strings.TrimSpace(value) || value != withoutQuotes(value) {
		return "'" + value + "'"
	}
	return value
}

// withoutQuotes is the reverse of inQuotes.
func withoutQuotes(text string) string {
	if text = strings.TrimSpace(text); len(text) > 1 && text[0] == '\'' && text[len(text)-1] == '\'' {
		return text[1 : len(text)-1]
	}
	return text
}

// filterForm is the name of a hidden field of the filter form.
const filterForm = "filter-form"

// address returns the URL of a page with the filters of a submitted form.
func address(path string, form url.Values) string {
	query := url.Values{}
	for name, values := range form {
		for _, value := range values {
			if name != filterForm && strings.TrimSpace(value) != "" {
				query.Add(name, withoutQuotes(value))
			}
		}
	}
	return path + "?" + query.Encode()
}

// onlyParameters rejects a request with other parameters, or with several values of one: the page would show and change
// other rows than its link says.
func onlyParameters(r *http.Request, names ...string) error {
	if err := r.ParseForm(); err != nil {
		return usagef("the address cannot be read: %s", err)
	}
	for name, values := range r.Form {
		switch {
		case !slices.Contains(names, name):
			return usagef("%q: want one of %s", name, strings.Join(names, ", "))
		case len(values) > 1:
			return usagef("%s: want one value, not %d", name, len(values))
		}
	}
	return nil
}

// pick reads the filters of a request into the configuration of its desk. Each parameter of the URL is a filter, even if
// it is empty: without it, the page would show and change more rows than its link says. Others are parameters that are
// no filters.
func pick(d *desk, r *http.Request, names []string, others ...string) (picked, error) {
	p := picked{Path: r.URL.Path}
	if err := onlyParameters(r, append(others, names...)...); err != nil {
		return p, err
	}
	query := url.Values{}
	d.cfg.looking.filter, d.cfg.looking.after = operator.Filter{}, r.FormValue("after")
	for _, name := range names {
		for _, setting := range append(filterSettings(), stateSetting()) {
			if setting.name != name {
				continue
			}
			f := field{Name: name, Label: strings.ReplaceAll(name, "-", " "), Value: r.FormValue(name), Set: r.Form.Has(name)}
			switch name {
			case "state":
				for _, state := range operator.States() {
					f.Options = append(f.Options, strings.ReplaceAll(string(state), "_", "-"))
				}
				fallthrough
			case "id", "older-than", "newer-than":
				f.Value = strings.TrimSpace(f.Value)
			}
			if f.Set {
				query.Set(name, f.Value)
				if err := setting.take(d.cfg, f.Value); err != nil {
					return p, usagef("%s: %s", f.Label, err)
				}
			}
			p.Fields = append(p.Fields, f)
		}
	}
	p.Query, p.Note = query.Encode(), show.WildcardNote(d.cfg.looking.filter, "")
	return p, nil
}

// goOn sets the link to the next page.
func (p *picked) goOn(next string) {
	if next == "" {
		return
	}
	p.Next = p.Path + "?after=" + next
	if p.Query != "" {
		p.Next += "&" + p.Query
	}
}
