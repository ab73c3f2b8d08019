package fallback

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// digest hashes a complete state: all that can be reached from some values, also through fields that are not exported.
// Pointers are numbered in the order in which they are met, so equal states have equal hashes. Functions and channels
// are left out.
type digest struct {
	hash uint64
	now  time.Time
	met  map[met]uint64
	// ranked are the values of counters, see counters.
	ranked [3][]uint64
}

type met struct {
	pointer unsafe.Pointer
	of      reflect.Type
}

// counters are the fields that grow with each term, pass, transaction and process, and of which only the order counts.
var counters = map[string]int{
	"epoch": 1, "Epoch": 1, "pass": 2, "number": 2, "seq": 3, "missed": 3, "forgottenAt": 3, "left": 3,
}

// aside are fields that are not part of the state.
const aside = " t name relays acting Wake Room Doubted Log "

// forgetAfter is the age after which times are equal.
const forgetAfter = 30 * time.Second

func digestOf(now time.Time, pointers ...any) uint64 {
	d := &digest{now: now, met: make(map[met]uint64, 64)}
	for _, pointer := range pointers {
		v := reflect.ValueOf(pointer)
		d.pointer(v.UnsafePointer(), v.Type().Elem())
	}
	for _, all := range d.ranked {
		known := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(all), 0))))
		for _, n := range all {
			rank, _ := slices.BinarySearch(known, n)
			d.add(uint64(rank))
		}
	}
	return d.hash
}

func (d *digest) add(n uint64) { d.hash = bits.RotateLeft64(d.hash^n, 27)*0x9e3779b97f4a7c15 + 1 }

func (d *digest) text(s string) {
	d.add(uint64(len(s)))
	for i := range len(s) {
		d.add(uint64(s[i]))
	}
}

func (d *digest) pointer(p unsafe.Pointer, to reflect.Type) {
	if p == nil {
		d.add(0)
		return
	}
	n, again := d.met[met{p, to}]
	if !again {
		n = uint64(len(d.met) + 1)
		d.met[met{p, to}] = n
	}
	if d.add(n); !again {
		d.value(to, p, 0)
	}
}

// value hashes the value at an address. A counter has the number of its kind.
func (d *digest) value(t reflect.Type, p unsafe.Pointer, counter int) {
	number := func(n uint64) {
		if counter > 0 {
			d.ranked[counter-1] = append(d.ranked[counter-1], n)
		} else {
			d.add(n)
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		d.pointer(*(*unsafe.Pointer)(p), t.Elem())
	case reflect.Interface: // only of pointers
		if v := reflect.NewAt(t, p).Elem(); !v.IsNil() {
			d.pointer(v.Elem().UnsafePointer(), v.Elem().Type().Elem())
		}
	case reflect.Struct:
		d.structure(t, p)
	case reflect.Slice:
		s := (*struct {
			data unsafe.Pointer
			len  int
		})(p)
		d.add(uint64(s.len))
		d.several(t.Elem(), s.data, s.len)
	case reflect.Array:
		d.several(t.Elem(), p, t.Len())
	case reflect.Map:
		d.mapping(reflect.NewAt(t, p).Elem())
	case reflect.String:
		d.text(*(*string)(p))
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		number(uint64(*(*uint8)(p)))
	case reflect.Int32, reflect.Uint32:
		number(uint64(*(*uint32)(p)))
	case reflect.Int, reflect.Int64, reflect.Uint64:
		number(*(*uint64)(p))
	case reflect.Func, reflect.Chan:
	default:
		panic(fmt.Sprintf("no digest of %s", t))
	}
}

func (d *digest) several(each reflect.Type, p unsafe.Pointer, n int) {
	for i := range n {
		d.value(each, unsafe.Add(p, uintptr(i)*each.Size()), 0)
	}
}

type field struct {
	of      reflect.Type
	at      uintptr
	counter int
}

// fields are those that are part of the state, of each struct that was met.
var fields = map[reflect.Type][]field{}

func (d *digest) structure(t reflect.Type, p unsafe.Pointer) {
	if t == reflect.TypeFor[time.Time]() {
		at, age := *(*time.Time)(p), uint64(1)
		if !at.IsZero() {
			age = uint64(min(max(at.Sub(d.now), -forgetAfter), forgetAfter))
		}
		d.add(age)
		return
	}
	known, met := fields[t]
	if !met {
		for i := range t.NumField() {
			if f := t.Field(i); !strings.Contains(aside, " "+f.Name+" ") && f.Type.Size() > 0 {
				known = append(known, field{f.Type, f.Offset, counters[f.Name]})
			}
		}
		fields[t] = known
	}
	for _, f := range known {
		d.value(f.of, unsafe.Add(p, f.at), f.counter)
	}
}

// mapping visits a map in the order of its keys: text, numbers, or structs that begin with an id.
func (d *digest) mapping(v reflect.Value) {
	d.add(uint64(v.Len()))
	if v.Len() == 0 {
		return
	}
	type entry struct {
		text       string
		number     int64
		key, value unsafe.Pointer
	}
	entries := make([]entry, 0, v.Len())
	for each := v.MapRange(); each.Next(); {
		key, value := reflect.New(v.Type().Key()), reflect.New(v.Type().Elem())
		key.Elem().SetIterKey(each)
		value.Elem().SetIterValue(each)
		e := entry{key: key.UnsafePointer(), value: value.UnsafePointer()}
		switch k := key.Elem(); {
		case k.Kind() == reflect.String:
			e.text = k.String()
		case k.CanInt():
			e.number = k.Int()
		case k.CanUint():
			e.number = int64(k.Uint())
		default:
			e.number = k.Field(0).Int()
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(strings.Compare(a.text, b.text), cmp.Compare(a.number, b.number))
	})
	for _, e := range entries {
		d.value(v.Type().Key(), e.key, 0)
		d.value(v.Type().Elem(), e.value, 0)
	}
}
