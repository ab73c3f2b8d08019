package console

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// picked holds the values of the filter form, and which rows they select.
type picked struct {
	filter operator.Filter
	// part is the part of the list that the request asks for.
	part operator.Page

	Path   string
	Fields []field
	Next   string
	// query has the filters that are set.
	query url.Values
	// States are links to the rows of each state.
	States []chip
	// none says why the list is empty without a filter, and what to do.
	none string
	// Note says why the filters may match nothing; "": they look right.
	Note string
	// Changes are the changes that apply to the selected rows.
	Changes []choice
}

type field struct {
	Name, Label, Value string
	// Set: the field filters. The empty value is a filter, too.
	Set bool
	// Options are all possible values; nil: any text. Offers are values that exist.
	Options, Offers []string
	// Error says why the value selects nothing; "": it is valid.
	Error string
}

// chip is a link to a part of the list; Here: the page shows it.
type chip struct {
	Text, Count, Link string
	Here              bool
}

// offerStates offers the states with messages. Their counts hold only without another filter.
func (p *picked) offerStates(v show.Stats) {
	chosen := p.query.Get("state")
	alone := len(p.query) == 0 || len(p.query) == 1 && p.query.Has("state")
	add := func(t tile, state string) {
		one := chip{t.Name, "", p.with("state", state), chosen == state}
		if alone {
			one.Count = t.Count
		}
		p.States = append(p.States, one)
	}
	add(newTile("All", v.Count("queue_depth"), "", "", ""), "")
	for _, t := range waitingTiles(v) {
		if _, state, found := strings.Cut(t.Link, "state="); found && (t.count.N > 0 || chosen == state) {
			add(t, state)
		}
	}
}

// with returns the URL of the page with another value of a filter; "": without it.
func (p picked) with(name, value string) string {
	query := maps.Clone(p.query)
	if query.Del(name); value != "" {
		query.Set(name, value)
	}
	return strings.TrimSuffix(p.Path+"?"+query.Encode(), "?")
}

// Active are the filters that are set, each with the URL of the page without it. The states have links of their own.
func (p picked) Active() (active []chip) {
	for _, f := range p.Fields {
		if f.Set && (f.Name != "state" || len(p.States) == 0) {
			active = append(active, chip{Text: f.Label, Count: inQuotes(f.Value), Link: p.with(f.Name, "")})
		}
	}
	return active
}

// None says why the list is empty, and what to do.
func (p picked) None() string {
	if slices.ContainsFunc(p.Fields, func(f field) bool { return f.Set }) {
		return "No message matches. Remove a filter, or search for an id or a key."
	}
	return p.none
}

// mistaken reports whether a field has an invalid value: the page shows the form, and no rows.
func (p picked) mistaken() bool { return p.mistake() != nil }

// Mistaken is mistaken for templates.
func (p picked) Mistaken() bool { return p.mistaken() }

// mistake is the error of the first invalid field.
func (p picked) mistake() error {
	for _, f := range p.Fields {
		if f.Error != "" {
			return mistakef("%s: %s", f.Label, f.Error)
		}
	}
	return nil
}

// offer sets the values that the fields offer.
func (p *picked) offer(o operator.Offered) {
	for i, key := range o.RoutingKeys {
		o.RoutingKeys[i] = operator.EscapePattern(key)
	}
	for name, values := range map[string][]string{
		"routing-key": o.RoutingKeys, "exchange": o.Exchanges, "reason": o.Reasons,
	} {
		if at := slices.IndexFunc(p.Fields, func(f field) bool { return f.Name == name }); at >= 0 {
			p.Fields[at].Offers = values
		}
	}
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
		return mistakef("the address cannot be read: %s", err)
	}
	for name, values := range r.Form {
		switch {
		case !slices.Contains(names, name):
			return mistakef("%q: want one of %s", name, strings.Join(names, ", "))
		case len(values) > 1:
			return mistakef("%s: want one value, not %d", name, len(values))
		}
	}
	return nil
}

// pick reads the filters of a request, of which names are possible. Others are parameters that are no filters. Each
// parameter of the URL filters, even if it is empty: else the page would show and change more rows than its link says.
// An invalid value is not an error of pick: the field keeps it, with what is wrong.
func (c *Console) pick(r *http.Request, names []string, others ...string) (picked, error) {
	p := picked{
		Path:  r.URL.Path,
		query: url.Values{},
		part:  operator.Page{After: r.FormValue("after"), Limit: c.cfg.Limits.Rows},
	}
	if err := onlyParameters(r, append(others, names...)...); err != nil {
		return p, err
	}
	for _, name := range names {
		f := fieldOf(r, name)
		if f.Set {
			p.query.Set(name, f.Value)
			if err := c.cfg.SetFilter(&p.filter, name, f.Value); err != nil {
				f.Error = err.Error()
			}
		}
		p.Fields = append(p.Fields, f)
	}
	p.Note = show.WildcardNote(p.filter, "")
	return p, nil
}

// fieldOf returns the field of a filter with its value in the request.
func fieldOf(r *http.Request, name string) field {
	f := field{
		Name:  name,
		Label: strings.ReplaceAll(name, "-", " "),
		Value: r.FormValue(name),
		Set:   r.Form.Has(name),
	}
	switch name {
	case "state":
		for _, state := range operator.States() {
			if state.Waits() {
				f.Options = append(f.Options, strings.ReplaceAll(string(state), "_", "-"))
			}
		}
		if f.Set && !slices.Contains(f.Options, f.Value) { // it stays, with an error
			f.Options = append(f.Options, f.Value)
		}
		fallthrough
	case "id", "older-than", "newer-than":
		f.Value = strings.TrimSpace(f.Value)
	}
	return f
}

// goOn sets the link to the next page.
func (p *picked) goOn(next string) {
	if next == "" {
		return
	}
	p.Next = p.with("after", next)
}
