package show

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// WildcardNote says that filters compare exactly, if one looks like a pattern; else it returns "". In a routing key of
// a message, * and # are ordinary characters. Before is written before the name of a filter.
func WildcardNote(f operator.Filter, before string) string {
	for _, one := range []struct {
		name  string
		value *string
	}{{"routing-key", f.RoutingKey}, {"exchange", f.Exchange}, {"ordering-key", f.OrderingKey}} {
		if one.value == nil {
			continue
		}
		if at := strings.IndexAny(*one.value, "*#%?"); at >= 0 {
			return fmt.Sprintf("%s%s compares the whole text: the %c in %s is no wildcard",
				before, one.name, (*one.value)[at], strconv.Quote(Printable(*one.value)))
		}
	}
	return ""
}
