package main

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/operator"
)

// picked holds the values of the filter form.
type picked struct {
	Path   string
	Fields []field
	Next   string
	// Query has the filters that are set, URL-encoded.
	Query string
	// Changes are the changes that apply to the selected rows.
	Changes []string
}

type field struct {
	Name, Label, Value string
	Options            []string
}

// pick reads the filters of a request into the configuration of its desk.
func pick(d *desk, r *http.Request, names ...string) (picked, error) {
	p := picked{Path: r.URL.Path}
	query := url.Values{}
	d.cfg.looking.filter, d.cfg.looking.after = operator.Filter{}, r.FormValue("after")
	for _, name := range names {
		for _, setting := range append(filterSettings(), stateSetting()) {
			if setting.name != name {
				continue
			}
			f := field{Name: name, Label: strings.ReplaceAll(name, "-", " "), Value: strings.TrimSpace(r.FormValue(name))}
			if name == "state" {
				for _, state := range operator.States() {
					f.Options = append(f.Options, strings.ReplaceAll(string(state), "_", "-"))
				}
			}
			if f.Value != "" {
				query.Set(name, f.Value)
				if err := setting.set(d.cfg, f.Value); err != nil {
					return p, usagef("%s: %s", f.Label, err)
				}
			}
			p.Fields = append(p.Fields, f)
		}
	}
	p.Query = query.Encode()
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
