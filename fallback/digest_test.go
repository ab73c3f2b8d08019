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

// digestOf returns the hash of what the pointers point to.
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
		hasherOf(to, 0)(d, p)
	}
}

// hasher hashes the value at an address.
type hasher func(d *digest, p unsafe.Pointer)

type hashed struct {
	of      reflect.Type
	counter int
}

var hashers = map[hashed]hasher{}

func hasherOf(t reflect.Type, counter int) hasher {
	known := hashers[hashed{t, counter}]
	if known == nil {
		known = newHasher(t, counter)
		hashers[hashed{t, counter}] = known
	}
	return known
}

func newHasher(t reflect.Type, counter int) hasher {
	number := func(d *digest, n uint64) {
		if counter > 0 {
			d.ranked[counter-1] = append(d.ranked[counter-1], n)
			return
		}
		d.add(n)
	}
	switch t.Kind() {
	case reflect.Pointer:
		to := t.Elem()
		return func(d *digest, p unsafe.Pointer) { d.pointer(*(*unsafe.Pointer)(p), to) }
	case reflect.Interface: // only of pointers
		return func(d *digest, p unsafe.Pointer) {
			if v := reflect.NewAt(t, p).Elem(); !v.IsNil() {
				d.pointer(v.Elem().UnsafePointer(), v.Elem().Type().Elem())
			}
		}
	case reflect.Struct:
		return structHasher(t)
	case reflect.Slice:
		each, size := hasherOf(t.Elem(), 0), t.Elem().Size()
		return func(d *digest, p unsafe.Pointer) {
			s := (*struct {
				data unsafe.Pointer
				len  int
			})(p)
			d.add(uint64(s.len))
			for i := range s.len {
				each(d, unsafe.Add(s.data, uintptr(i)*size))
			}
		}
	case reflect.Array:
		each, size := hasherOf(t.Elem(), 0), t.Elem().Size()
		return func(d *digest, p unsafe.Pointer) {
			for i := range t.Len() {
				each(d, unsafe.Add(p, uintptr(i)*size))
			}
		}
	case reflect.Map:
		return func(d *digest, p unsafe.Pointer) { d.mapping(reflect.NewAt(t, p).Elem()) }
	case reflect.String:
		return func(d *digest, p unsafe.Pointer) { d.text(*(*string)(p)) }
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return func(d *digest, p unsafe.Pointer) { number(d, uint64(*(*uint8)(p))) }
	case reflect.Int32, reflect.Uint32:
		return func(d *digest, p unsafe.Pointer) { number(d, uint64(*(*uint32)(p))) }
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return func(d *digest, p unsafe.Pointer) { number(d, *(*uint64)(p)) }
	case reflect.Func, reflect.Chan:
		return func(*digest, unsafe.Pointer) {}
	}
	panic(fmt.Sprintf("no digest of %s", t))
}

func structHasher(t reflect.Type) hasher {
	if t == reflect.TypeFor[time.Time]() {
		return func(d *digest, p unsafe.Pointer) {
			at := *(*time.Time)(p)
			if at.IsZero() {
				d.add(1)
				return
			}
			d.add(uint64(min(max(at.Sub(d.now), -forgetAfter), forgetAfter)))
		}
	}
	type field struct {
		at   uintptr
		hash hasher
	}
	var fields []field
	for i := range t.NumField() {
		if f := t.Field(i); !strings.Contains(aside, " "+f.Name+" ") && f.Type.Size() > 0 {
			fields = append(fields, field{f.Offset, hasherOf(f.Type, counters[f.Name])})
		}
	}
	return func(d *digest, p unsafe.Pointer) {
		for _, f := range fields {
			f.hash(d, unsafe.Add(p, f.at))
		}
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
		hasherOf(v.Type().Key(), 0)(d, e.key)
		hasherOf(v.Type().Elem(), 0)(d, e.value)
	}
}
