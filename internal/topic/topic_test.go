package topic

import "testing"

func TestPatternsMatchLikeBindings(t *testing.T) {
	for _, test := range []struct {
		pattern, key string
		matches      bool
	}{
		{"orders.created", "orders.created", true},
		{"orders.created", "orders-created", false},
		{"orders.*", "orders.created", true},
		{"orders.*", "orders.created.eu", false},
		{"orders.*", "orders", false},
		{"ord*", "orders", false},
		{"*.created", "orders.created", true},
		{"orders.#", "orders", true},
		{"orders.#", "orders.created.eu", true},
		{"orders.#", "ordersx", false},
		{"#.eu", "eu", true},
		{"#.eu", "orders.created.eu", true},
		{"#", "", true},
		{"*", "", false},
		{"", "", true},
		{"", "orders", false},
		{"a.*.c", "a.b.c", true},
		{"(", "(", true},
	} {
		if got := Matches(test.pattern, test.key); got != test.matches {
			t.Errorf("%q matches %q: %t", test.pattern, test.key, got)
		}
	}
}
