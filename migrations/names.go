package migrations

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// longestIdentifier is NAMEDATALEN - 1. Postgres truncates longer names.
const longestIdentifier = 63

// VersionTable names the table with the version of an outbox's tables.
func VersionTable(table outbox.Table) outbox.Table { return named(table, "migrations") }

// RelayTable names the table in which the relays of an outbox tell what they do.
func RelayTable(table outbox.Table) outbox.Table { return named(table, "relay") }

// lastPartition names the default partition of the history. The name of each other one begins with it.
func lastPartition(table outbox.Table) outbox.Table { return named(table, "p") }

// UsualSequence names the sequence behind the identity column id. Postgres cuts the table's name if the whole would be
// too long (makeObjectName).
func UsualSequence(table outbox.Table) outbox.Table {
	const suffix = "_id_seq"
	return outbox.Table{Schema: table.Schema, Name: cut(table.Name, longestIdentifier-len(suffix)) + suffix}
}

// QuoteLiteral writes a string constant that means the same under any standard_conforming_strings, and does not end a
// dollar-quoted function body around it.
func QuoteLiteral(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, `$`, `\x24`).Replace(s) + "'"
}

// DollarQuote returns a dollar quote that does not occur in the text.
func DollarQuote(text string) string {
	quote := "$body$"
	for strings.Contains(text, quote) {
		quote = strings.TrimSuffix(quote, "$") + "_$"
	}
	return quote
}

// checkName rejects a name that is too long for the dead-letter table's suffix: Postgres would truncate both to the
// same name.
func checkName(table outbox.Table) error {
	if longest := longestIdentifier - len("_dead_letter"); len(table.Name) > longest {
		return fmt.Errorf("table name %s is too long: at most %d bytes, so that %s_dead_letter fits as well",
			table, longest, table.Name)
	}
	return nil
}

// uniqueName returns a name that is unique in the schema, as for an index. If the table's name must be cut, a hash
// keeps it distinct from other tables with the same start.
func uniqueName(table, suffix string) string {
	if len(table)+len("_")+len(suffix) <= longestIdentifier {
		return table + "_" + suffix
	}
	sum := sha256.Sum256([]byte(table))
	suffix = hex.EncodeToString(sum[:4]) + "_" + suffix
	return cut(table, longestIdentifier-len("_")-len(suffix)) + "_" + suffix
}

// cut shortens a name to n bytes without splitting a character.
func cut(name string, n int) string {
	if len(name) <= n {
		return name
	}
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}
