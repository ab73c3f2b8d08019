package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/xrash/smetrics"
)

// Unknown is an environment variable that looks like a setting and has no effect.
type Unknown struct {
	Variable string
	Advice   string
}

// UnknownVariables returns the variables with the prefix that are no settings. Pairs are those of os.Environ. Foreign
// reports whether the name, without the prefix, belongs to somebody else. The advice ends with where all settings are
// listed, if nothing better is known.
func (r *Reader[T]) UnknownVariables(pairs []string, foreign func(name string) bool, listed string) []Unknown {
	var names []string
	forFlags := make(map[string]string)
	for _, s := range r.All {
		if name := strings.TrimPrefix(r.Variable(s.Name), r.Prefix); s.FlagOnly {
			forFlags[name] = s.Name
		} else {
			names = append(names, name)
		}
	}
	var wrong []string
	for _, pair := range pairs {
		variable, _, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(variable, r.Prefix)
		if ours && !slices.Contains(names, name) && !foreign(name) {
			wrong = append(wrong, name)
		}
	}
	slices.Sort(wrong)
	var unknown []Unknown
	for _, name := range wrong {
		advice := "it is no setting; " + listed
		if flag, ok := forFlags[name]; ok {
			advice = fmt.Sprintf("--%s can only be given as a flag", flag)
		} else if near := Nearest(name, names); near != "" {
			advice = "did you mean " + r.Prefix + near + "?"
		}
		unknown = append(unknown, Unknown{r.Prefix + name, advice})
	}
	return unknown
}

// Nearest returns the known name that was probably meant, or "".
func Nearest(name string, known []string) string {
	best, least := "", (len(name)+2)/3+1
	for _, candidate := range known {
		if d := smetrics.WagnerFischer(name, candidate, 1, 1, 1); d < least {
			best, least = candidate, d
		}
	}
	return best
}
