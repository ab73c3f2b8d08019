package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// NamesOf returns the objects of a shard of a table. The given publication and slot are the names for the whole table.
func NamesOf(table outbox.Table, publication, slot string, shard outbox.Shard) Names {
	return Names{
		Table: table, Publication: publication + shard.NameSuffix(), Slot: slot + shard.NameSuffix(), Shard: shard,
	}
}

// OfWholeTable returns the names for the whole table.
func (n Names) OfWholeTable() (publication, slot string) {
	suffix := n.Shard.NameSuffix()
	return strings.TrimSuffix(n.Publication, suffix), strings.TrimSuffix(n.Slot, suffix)
}

// Sibling reports whether a slot belongs to a shard of the same table, in the same number of shards.
func (n Names) Sibling(slot string) bool {
	_, whole := n.OfWholeTable()
	return shardsInName(whole, slot) == max(n.Shard.Of, 1)
}

// ErrOtherSplit is returned if relays split the table's stream into another number of shards. Together they would
// publish rows twice.
var ErrOtherSplit = errors.New("the stream is split in two ways")

// OtherSlot is another slot of the same table.
type OtherSlot struct {
	Name string
	// Active: a relay of the table streams from it.
	Active bool
	of     int
}

// OtherSlotsOf selects the slots of the table in this database with another number of shards, from all slots of the
// server. It finds them by name.
func OtherSlotsOf(all []slot.Slot, names Names) []OtherSlot {
	return slices.DeleteFunc(slotsOf(all, names),
		func(other OtherSlot) bool { return other.of == max(names.Shard.Of, 1) })
}

// Rivals selects the slots from which other relays stream the same rows of the table, from all slots of the server.
func Rivals(all []slot.Slot, names Names) []slot.Slot {
	return slices.DeleteFunc(slices.Clone(all), func(s slot.Slot) bool {
		return s.Name == names.Slot || s.Temporary || names.Sibling(s.Name) || !s.Owner().Relays(names.Table)
	})
}

// RivalProblem says that another relay streams the table, from a slot with another name.
func RivalProblem(rival slot.Slot, names Names) *problem.Problem {
	return problem.New("# give all relays of the table the same --slot; "+
		"to change it, first stop the relays with the former name",
		"table %s is streamed from slot %s by %s: another slot, %s, would retain WAL that nobody reads",
		names.Table, rival.Name, rival.Process, names.Slot)
}

// CheckSplit returns a *problem.Problem if relays stream the same rows from other slots: with ErrOtherSplit if these
// are of another number of shards. An unused slot does no harm. If two relays start at once and both check after their
// start, at least one fails.
func CheckSplit(ctx context.Context, conn *pgconn.PgConn, names Names) error {
	all, err := slot.List(ctx, conn)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(OtherSlotsOf(all, names), func(other OtherSlot) bool { return !other.Active })
	if len(others) == 0 {
		if rivals := Rivals(all, names); len(rivals) > 0 {
			return RivalProblem(rivals[0], names)
		}
		return nil
	}
	what := "the whole stream"
	if !names.Shard.Whole() {
		what = "shard " + names.Shard.String()
	}
	return problem.Of(ErrOtherSplit,
		teardownCommand(names, others[0].of)+"  # after all relays of the table have stopped; "+
			"then start all with one number of shards; unpublished rows wait in the table",
		"other relays split table %s into another number of shards; this one publishes %s; their slots: %s",
		names.Table, what, listed(others))
}

// SlotsBeside returns all slots of the table in this database except those named.
func SlotsBeside(ctx context.Context, conn *pgconn.PgConn, names ...Names) ([]OtherSlot, error) {
	all, err := slot.List(ctx, conn)
	return slices.DeleteFunc(slotsOf(all, names[0]), func(other OtherSlot) bool {
		return slices.ContainsFunc(names, func(n Names) bool { return n.Slot == other.Name })
	}), err
}

// slotsOf returns all slots of the table, for any number of shards.
func slotsOf(all []slot.Slot, names Names) (slots []OtherSlot) {
	_, base := names.OfWholeTable()
	for _, s := range all {
		if of := shardsInName(base, s.Name); of != 0 && s.Here && s.Plugin == slot.Plugin {
			slots = append(slots, OtherSlot{Name: s.Name, Active: s.Owner().Relays(names.Table), of: of})
		}
	}
	return slots
}

// shardsInName returns the number of shards in a slot's name; 0: not a slot of this table.
func shardsInName(base, name string) int {
	rest, found := strings.CutPrefix(name, base)
	if !found {
		return 0
	}
	if rest == "" {
		return 1
	}
	index, of, found := strings.Cut(strings.TrimPrefix(rest, "_"), "_of_")
	shard, err := outbox.ParseShard(index + "/" + of)
	if !found || err != nil || shard.NameSuffix() != rest {
		return 0
	}
	return shard.Of
}

// LeftBehind returns the problem that a teardown would leave these slots.
func LeftBehind(names Names, others []OtherSlot) *problem.Problem {
	return problem.New(teardownCommand(names, others[0].of),
		"table %s has other slots: %s", names.Table, listed(others))
}

func listed(slots []OtherSlot) string {
	seen := make([]string, len(slots))
	for i, other := range slots {
		if seen[i] = other.Name; other.Active {
			seen[i] += " (in use)"
		}
	}
	return strings.Join(seen, ", ")
}

// teardownCommand returns the command that drops the slots of one number of shards.
func teardownCommand(names Names, of int) string {
	publication, slot := names.OfWholeTable()
	command := "cdc-relay teardown"
	if of > 1 {
		command += " --shards " + strconv.Itoa(of)
	}
	for _, flag := range []struct{ name, value, usual string }{
		{"table", names.Table.String(), "public.outbox"},
		{"slot", slot, "cdc_relay"},
		{"publication", publication, "cdc_relay"},
	} {
		if flag.value != flag.usual {
			command += fmt.Sprintf(" --%s '%s'", flag.name, strings.ReplaceAll(flag.value, "'", `'\''`))
		}
	}
	return command
}
