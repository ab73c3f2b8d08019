package outbox_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestParseShard(t *testing.T) {
	for text, want := range map[string]outbox.Shard{
		"0/1": {}, "0/4": {Index: 0, Of: 4}, "3/4": {Index: 3, Of: 4}, "63/64": {Index: 63, Of: 64},
	} {
		got, err := outbox.ParseShard(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "4", "/", "4/4", "-1/4", "0/0", "0/-1", "0/65", "+0/4", "00/4", "0/4 ", "0/4/1", "a/b", "1/1"} {
		if got, err := outbox.ParseShard(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestShardsOf(t *testing.T) {
	for n, want := range map[int][]outbox.Shard{0: {{}}, 1: {{}}, 2: {{Index: 0, Of: 2}, {Index: 1, Of: 2}}} {
		got := outbox.ShardsOf(n)
		if len(got) != len(want) {
			t.Fatalf("of %d: %v", n, got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("of %d: %v, want %v", n, got, want)
			}
		}
	}
}

func TestTheWholeTableNeedsNoCondition(t *testing.T) {
	whole := outbox.Shard{}
	if whole.Condition("r.") != "true" || whole.Printed() != "" || whole.NameSuffix() != "" || !whole.Whole() {
		t.Errorf("%q %q %q", whole.Condition("r."), whole.Printed(), whole.NameSuffix())
	}
	if suffix := (outbox.Shard{Index: 2, Of: 4}).NameSuffix(); suffix != "_2_of_4" {
		t.Error(suffix)
	}
}
