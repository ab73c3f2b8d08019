package show

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// WildcardNote says what is no wildcard, if a filter looks like a pattern and is none; else it returns "". Before is
// written before the name of a filter.
func WildcardNote(f operator.Filter, before string) string {
	for _, one := range []struct {
		name  string
		value *string
	}{{"exchange", f.Exchange}, {"ordering-key", f.OrderingKey}} {
		if one.value == nil {
			continue
		}
		if at := strings.IndexAny(*one.value, "*#%?"); at >= 0 {
			return fmt.Sprintf("%s%s compares the whole text: the %c in %s is no wildcard",
				before, one.name, (*one.value)[at], strconv.Quote(Printable(*one.value)))
		}
	}
	if f.RoutingKey == nil {
		return ""
	}
	key := f.RoutingKey.String()
	if at := strings.IndexAny(key, "%?"); at >= 0 {
		return fmt.Sprintf("%srouting-key: the %c in %s is no wildcard; * is one word, # any number of words",
			before, key[at], strconv.Quote(Printable(key)))
	}
	return ""
}
